"""/v1/messages: refused fields, the stop sequence that ended an answer, signatures of thoughts, and types of errors."""

import base64
import hashlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from sglang_gemma4.serving.protocols.stream_start import Refused, status_of

ERROR_TYPES: Mapping[int, str] = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
"""Anthropic's error types by status. Other statuses below 500 are invalid requests, and from 500 on API errors."""
KNOWN = {*ERROR_TYPES.values(), "api_error"}
THREADS = "thread_unsupported_request"
"""Error code that Anthropic's clients look for: they then send the whole conversation again, without a thread."""
REFUSED: Mapping[str, str] = {
    "thread": "this server keeps no conversation between requests; send all of its messages",
    "compaction": "this server writes no summary of a conversation; ask for one in a message",
    "container": "this server runs no code; leave it out, and declare a tool of your own",
    "mcp_servers": "this server calls no MCP server; call it yourself, and declare its tools",
}
"""Fields that this server does not serve, and what to do instead."""


def error(said: str) -> dict[str, Any]:
    """A client's error in Anthropic's form."""
    return {"type": "error", "error": {"type": ERROR_TYPES[400], "message": said}}


def refusal(body: Any) -> dict[str, Any] | None:
    """The error, in Anthropic's form, of a request with a field that is not served; None for other requests."""
    for name, reason in REFUSED.items() if isinstance(body, dict) else ():
        if body.get(name):
            found = error(f"{name}: not served: {reason}")
            if name == "thread":
                found["error"]["details"] = {"error_code": THREADS}
            return found
    return None


def take_format(body: Any, request: Any) -> None:
    """Set ``output_config.format`` of SGLang's request to the body's ``output_format``, which older clients send.

    Raises:
        ValueError: the field is not a JSON schema format, or both fields are given.
    """
    given = body.get("output_format") if isinstance(body, dict) else None
    if not given:
        return
    from pydantic import ValidationError
    from sglang.srt.entrypoints.anthropic.protocol import AnthropicJSONOutputFormat, AnthropicOutputConfig

    config = request.output_config or AnthropicOutputConfig()
    if config.format is not None:
        raise ValueError("output_config.format is given too; send one of them")
    try:
        config.format = AnthropicJSONOutputFormat.model_validate(given)
    except ValidationError:
        raise ValueError("give an object with type 'json_schema' and a schema") from None
    request.output_config = config


def error_type(status: int, given: str = "") -> str:
    """The type of an error with ``status``; one that Anthropic's clients know already is kept."""
    if given in KNOWN:
        return given
    return ERROR_TYPES.get(status, "api_error" if status >= 500 else ERROR_TYPES[400])


def signature(thought: str) -> str:
    """A thought's signature, which tells clients that they may send the thought back; no server checks it.

    Anthropic's signatures are opaque and never empty. Without one, clients send a thought back as text, or fail.
    """
    return base64.b64encode(hashlib.sha256(thought.encode(errors="replace")).digest()).decode()


def complete(answer: Any, matched: Any, stops: Sequence[str]) -> None:
    """Add to a whole answer, in place, its thoughts' signatures and the stop sequence that ended it.

    Args:
        answer: SGLang's ``AnthropicMessagesResponse``.
        matched: what ended the answer; a text if it was a stop string.
        stops: the client's stop sequences; the template may have other stop strings.
    """
    for block in answer.content:
        if block.type == "thinking" and not block.signature:
            block.signature = signature(block.thinking)
    if answer.stop_reason == "end_turn" and matched in stops:
        answer.stop_reason, answer.stop_sequence = "stop_sequence", matched


class Ended:
    """Records what ended an answer, from the chat stream below a stream of messages.

    Attributes:
        matched: a stop string, a token's id or None.
    """

    def __init__(self) -> None:
        self.matched: Any = None

    async def over(self, lines: AsyncIterator[str]) -> AsyncIterator[str]:
        """Pass ``lines`` on unchanged, and set ``matched`` from them."""
        async for line in lines:
            if '"matched_stop":"' in line:
                for choice in _parsed(line).get("choices") or ():
                    self.matched = choice.get("matched_stop", self.matched)
            yield line


def refusal_of(line: str) -> Refused | None:
    """Status and message if ``line``, the chat stream's first, is an error; otherwise None."""
    found = _parsed(line).get("error")
    return (status_of(found.get("code")), str(found.get("message"))) if isinstance(found, dict) else None


def _parsed(line: str) -> dict[str, Any]:
    try:
        found = json.loads(line.removeprefix("data: "))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


async def completed(frames: AsyncIterator[str], ended: Ended, stops: Sequence[str]) -> AsyncIterator[str]:
    """A stream of messages with signatures of thoughts, the stop sequence at its end, and Anthropic's error types.

    Args:
        stops: the client's stop sequences.
    """
    thought: list[str] | None = None
    async for frame in frames:
        kind = frame.partition("\n")[0].removeprefix("event: ")
        if kind == "content_block_start" and '"thinking"' in frame:
            event = _event(frame)
            if event["content_block"]["type"] == "thinking":
                thought = []
                event["content_block"]["signature"] = ""
                frame = _frame(event)
        elif thought is not None and kind == "content_block_delta":
            thought.append(_event(frame)["delta"].get("thinking", ""))
        elif thought is not None and kind == "content_block_stop":
            delta = {"type": "signature_delta", "signature": signature("".join(thought))}
            yield _frame({"type": "content_block_delta", "index": _event(frame)["index"], "delta": delta})
            thought = None
        elif kind == "message_delta" and ended.matched in stops:
            event = _event(frame)
            if event["delta"].get("stop_reason") == "end_turn":
                event["delta"].update(stop_reason="stop_sequence", stop_sequence=ended.matched)
                frame = _frame(event)
        elif kind == "error":
            event = _event(frame)
            event["error"]["type"] = event["error"]["type"] if event["error"]["type"] in KNOWN else "api_error"
            frame = _frame(event)
        yield frame


def _event(frame: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(frame.partition("data: ")[2])
    return found


def _frame(event: dict[str, Any]) -> str:
    return f"event: {event['type']}\ndata: {json.dumps(event, ensure_ascii=False)}\n\n"
