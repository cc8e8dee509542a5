"""/v1/messages: what a request asks for that is not served, the stop sequence that ended an answer, signatures and types of errors."""

import base64
import hashlib
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

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
"""Anthropic's types of errors by status; any other below 500 is the request's, from 500 on the server's."""
KNOWN = {*ERROR_TYPES.values(), "api_error"}
THREADS = "thread_unsupported_request"
"""What Anthropic's clients look for in an error: they send the whole conversation again, without a thread."""
REFUSED: Mapping[str, str] = {
    "thread": "this server keeps no conversation between requests; send all of its messages",
    "compaction": "this server writes no summary of a conversation; ask for one in a message",
    "container": "this server runs no code; leave it out, and declare a tool of your own",
    "mcp_servers": "this server calls no MCP server; call it yourself, and declare its tools",
    "output_format": "send the schema as output_config.format",
}
"""Fields that ask for something of an answer which this server has not."""


def refusal(body: Any) -> dict[str, Any] | None:
    """The error of a request that asks for what is not served, in Anthropic's form; None for any other."""
    for name, reason in REFUSED.items() if isinstance(body, dict) else ():
        if body.get(name):
            error: dict[str, Any] = {"type": ERROR_TYPES[400], "message": f"{name}: not served: {reason}"}
            if name == "thread":
                error["details"] = {"error_code": THREADS}
            return {"type": "error", "error": error}
    return None


def error_type(status: int, given: str = "") -> str:
    """The type of an error with ``status``; one that Anthropic's clients know already is kept."""
    if given in KNOWN:
        return given
    return ERROR_TYPES.get(status, "api_error" if status >= 500 else ERROR_TYPES[400])


def signature(thought: str) -> str:
    """A thought's signature, by which clients know that they may send it back; no server checks it.

    Anthropic's is opaque and never empty: clients send a thought without one back as text, or fail.
    """
    return base64.b64encode(hashlib.sha256(thought.encode(errors="replace")).digest()).decode()


def complete(answer: Any, matched: Any) -> None:
    """Give a whole answer, in place, its thoughts' signatures and the stop sequence that ended it.

    Args:
        answer: SGLang's ``AnthropicMessagesResponse``.
        matched: what ended it, a text where it was a stop sequence.
    """
    for block in answer.content:
        if block.type == "thinking" and not block.signature:
            block.signature = signature(block.thinking)
    if answer.stop_reason == "end_turn" and isinstance(matched, str):
        answer.stop_reason, answer.stop_sequence = "stop_sequence", matched


class Watched:
    """The chat stream below a stream of messages: how it begins, and what ended it.

    Attributes:
        refused: status and message, where the first thing that came was an error.
        matched: what the answer's last part says it ended with.
    """

    def __init__(self) -> None:
        self.refused: tuple[int, str] | None = None
        self.matched: Any = None

    async def over(self, lines: AsyncIterator[str]) -> AsyncIterator[str]:
        """The same lines, looked at."""
        from fastapi import HTTPException

        begun = False
        try:
            async for line in lines:
                if not begun or '"matched_stop":"' in line:
                    self._look(line, begun)
                begun = True
                yield line
        except (ValueError, HTTPException) as error:
            if not begun:
                self.refused = (error.status_code, str(error.detail)) if isinstance(error, HTTPException) else (400, str(error))
            raise

    def _look(self, line: str, begun: bool) -> None:
        try:
            event = json.loads(line.removeprefix("data: "))
        except ValueError:
            return
        error = event.get("error")
        if isinstance(error, dict) and not begun:
            self.refused = (int(error.get("code") or 500), str(error.get("message")))
        for choice in event.get("choices") or ():
            self.matched = choice.get("matched_stop", self.matched)


async def completed(frames: AsyncIterator[str], watched: Watched) -> AsyncIterator[str]:
    """A stream of messages whose thoughts have signatures, whose end names the stop sequence and whose errors have types."""
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
        elif kind == "message_delta" and isinstance(watched.matched, str):
            event = _event(frame)
            if event["delta"].get("stop_reason") == "end_turn":
                event["delta"].update(stop_reason="stop_sequence", stop_sequence=watched.matched)
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
