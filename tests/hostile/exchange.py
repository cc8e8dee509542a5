"""One request as bytes on a socket, how its client behaves, and what came of it."""

import contextlib
import http.client
import json
import socket
import time
from dataclasses import dataclass, field
from typing import Any, Literal

Manner = Literal["patient", "leaves in the answer", "leaves in the body", "leaves at once", "says no more"]
CHUNK = 65536
KEPT = 2000
"""Bytes of an answer that are kept."""


@dataclass(frozen=True)
class Request:
    """What is sent. ``kind`` names the generator's recipe: of a kind that ended the server no more is sent."""

    kind: str
    path: str
    body: bytes = b""
    method: str = "POST"
    headers: tuple[tuple[str, str], ...] = (("Content-Type", "application/json"),)
    manner: Manner = "patient"
    number: int = -1

    def wire(self, host: str) -> bytes:
        """The request as HTTP/1.1, closed by the server after its answer."""
        named = {name.lower() for name, _ in self.headers}
        lines = [f"{self.method} {self.path} HTTP/1.1", f"x-hostile-number: {self.number}", "Connection: close"]
        lines += [] if "host" in named else [f"Host: {host}"]
        lines += [] if {"content-length", "transfer-encoding"} & named else [f"Content-Length: {len(self.body)}"]
        lines += [f"{name}: {value}" for name, value in self.headers]
        return "\r\n".join(lines).encode("latin1", "replace") + b"\r\n\r\n" + self.body

    def shown(self, most: int = 400) -> str:
        """One line for people."""
        text = self.body.decode("utf-8", "backslashreplace")
        cut = text if len(text) <= most else f"{text[:most]}... ({len(text)} characters)"
        return f"#{self.number} [{self.kind}] {self.method} {self.path} {cut}"


def json_request(kind: str, path: str, body: Any, **more: Any) -> Request:
    """A request with a JSON body; NaN and Infinity are written as Python writes them."""
    return Request(kind, path, json.dumps(body).encode(), **more)


@dataclass
class Outcome:
    """What came of a request: a status, or what went wrong."""

    status: int = 0
    text: str = ""
    seconds: float = 0.0
    trouble: Literal["", "unanswered", "refused", "cut"] = ""
    """``unanswered`` within the limit; ``refused`` to connect; ``cut``: the connection ended before the answer did."""
    stream_errors: list[int] = field(default_factory=list)
    """Statuses of errors that came as events of a stream that began with 200."""

    @property
    def statuses(self) -> list[int]:
        """The status and those inside the stream."""
        return [self.status, *self.stream_errors]


def send(request: Request, address: tuple[str, int], limit: float) -> Outcome:
    """Send a request and read its answer as its client does.

    Args:
        request: what is sent.
        address: host and port.
        limit: seconds for all of it; what takes longer is ``unanswered``.
    """
    began, outcome = time.monotonic(), Outcome()
    try:
        with socket.create_connection(address, timeout=limit) as connection:
            _exchange(request, connection, f"{address[0]}:{address[1]}", outcome, began + limit)
    except TimeoutError:
        outcome.trouble = "unanswered"
    except ConnectionRefusedError:
        outcome.trouble = "refused"
    except (OSError, http.client.HTTPException) as error:
        if outcome.status == 0:
            outcome.trouble, outcome.text = "cut", f"{type(error).__name__}: {error}"
    outcome.seconds = time.monotonic() - began
    return outcome


def _exchange(request: Request, connection: socket.socket, host: str, outcome: Outcome, until: float) -> None:
    wire = request.wire(host)
    if request.manner == "leaves in the body":
        connection.sendall(wire[: -max(1, len(request.body) // 2)])
        return
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it answers before it has read all: the answer counts
        connection.sendall(wire)
    if request.manner == "leaves at once":
        return
    if request.manner == "says no more":  # a server may wait for the rest of a body that never comes
        connection.shutdown(socket.SHUT_WR)
    answer = http.client.HTTPResponse(connection, method=request.method)
    answer.begin()
    outcome.status = answer.status
    first = answer.read1(CHUNK)
    outcome.text = first[:KEPT].decode("utf-8", "replace")
    if request.manner == "leaves in the answer":
        return
    rest = bytearray(first)
    while piece := _more(answer, connection, until):
        rest += piece
    outcome.text = rest[:KEPT].decode("utf-8", "replace")
    _events(bytes(rest), outcome)


def _more(answer: http.client.HTTPResponse, connection: socket.socket, until: float) -> bytes:
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError
    connection.settimeout(left)
    return answer.read1(CHUNK)


def _events(text: bytes, outcome: Outcome) -> None:
    """Keep the statuses of errors that were sent as events of a stream."""
    for line in text.splitlines():
        if line.startswith(b"data: {") and b'"error"' in line[:200]:
            with contextlib.suppress(ValueError, AttributeError, TypeError):
                code = json.loads(line[6:])["error"].get("code")
                outcome.stream_errors.append(code if isinstance(code, int) else 400)
                outcome.text = line[:KEPT].decode("utf-8", "replace")
