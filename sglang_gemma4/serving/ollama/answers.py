"""Answers of SGLang's chat and completions in Ollama's form, whole and streamed."""

import json
import logging
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from sglang_gemma4.serving.past_calls import whole_arguments

logger = logging.getLogger(__name__)
Part = Callable[["Piece"], dict[str, Any]]


@dataclass
class Piece:
    """A part of an answer: the content of one line of a stream, or the whole answer.

    Attributes:
        calls: whole calls, as [id, name, arguments as text].
        logprobs: entries of chat completions, which are Ollama's too.
    """

    text: str = ""
    thought: str = ""
    calls: list[list[str]] = field(default_factory=list)
    logprobs: list[Any] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.text or self.thought or self.calls or self.logprobs)


def of_chat(piece: Piece) -> dict[str, Any]:
    """A part of an answer as /api/chat gives it."""
    message: dict[str, Any] = {"role": "assistant", "content": piece.text}
    if piece.thought:
        message["thinking"] = piece.thought
    if piece.calls:
        message["tool_calls"] = [_call(number, *call) for number, call in enumerate(piece.calls)]
    return {"message": message, **({"logprobs": piece.logprobs} if piece.logprobs else {})}


def of_generate(piece: Piece) -> dict[str, Any]:
    """A part of an answer as /api/generate gives it."""
    thought = {"thinking": piece.thought} if piece.thought else {}
    return {"response": piece.text, **thought, **({"logprobs": piece.logprobs} if piece.logprobs else {})}


def _call(number: int, call_id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": call_id, "function": {"index": number, "name": name, "arguments": _object(name, arguments)}}


def _object(name: str, arguments: str) -> Any:
    """A call's arguments, completed if the answer ended inside them. Text that begins no object gives {} and a warning."""
    found = whole_arguments(arguments)
    try:
        found = json.loads(found) if isinstance(found, str) else found
    except ValueError:
        found = None
    if not isinstance(found, dict):
        logger.warning("a call of %r has arguments that are no object: %.200r", name, arguments)
        return {}
    return found


def stamp() -> str:
    """The time in Ollama's form."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def line(model: str, part: dict[str, Any], done: dict[str, Any] | None = None) -> dict[str, Any]:
    """One object of an answer; ``done`` has the fields of the last object, and is None for others."""
    return {"model": model, "created_at": stamp(), **part, "done": done is not None, **(done or {})}


def ending(finish: str | None, usage: Any, started: int, first: int | None = None) -> dict[str, Any]:
    """The fields of an answer's end: why it ended, tokens, and nanoseconds.

    Args:
        usage: the usage of chat completions, an object or None.
        started: time in nanoseconds at which the request came.
        first: time in nanoseconds at which the first token came; if None, only the total is given.
    """
    end = time.perf_counter_ns()
    reason = finish if finish in ("length", "abort") else "stop"
    found: dict[str, Any] = {"done_reason": reason, "total_duration": end - started, "load_duration": 0}
    if usage:
        found["prompt_eval_count"] = usage.get("prompt_tokens") or 0
        found["eval_count"] = usage.get("completion_tokens") or 0
    if first is not None:
        found["prompt_eval_duration"], found["eval_duration"] = first - started, end - first
    return found


def whole(answer: dict[str, Any], model: str, part: Part, started: int) -> dict[str, Any]:
    """A whole answer of chat completions or completions."""
    choice = answer["choices"][0]
    message = choice.get("message") or {"content": choice.get("text")}
    calls = [[call["id"] or "", call["function"]["name"], call["function"]["arguments"]] for call in message.get("tool_calls") or []]
    logprobs = _logprobs(choice)
    piece = Piece(message.get("content") or "", message.get("reasoning_content") or "", calls, logprobs)
    return line(model, part(piece), ending(choice.get("finish_reason"), answer.get("usage"), started))


async def streamed(chunks: AsyncIterable[Any], model: str, part: Part, started: int) -> AsyncIterator[bytes]:
    """The lines of a streamed answer; calls are sent whole, before the last line."""
    calls: dict[int, list[str]] = {}
    finish, usage, first = None, None, None
    async for event in events(chunks):
        if error := event.get("error"):
            yield _written({"error": str(error.get("message") if isinstance(error, dict) else error)})
            return
        first = first or time.perf_counter_ns()
        usage = event.get("usage") or usage
        for choice in event["choices"]:
            finish = choice.get("finish_reason") or finish
            delta = choice.get("delta") or {"content": choice.get("text")}
            _gather(calls, delta.get("tool_calls") or [])
            if piece := Piece(delta.get("content") or "", delta.get("reasoning_content") or "", logprobs=_logprobs(choice)):
                yield _written(line(model, part(piece)))
    if calls:
        yield _written(line(model, part(Piece(calls=[calls[index] for index in sorted(calls)]))))
    yield _written(line(model, part(Piece()), ending(finish, usage, started, first or time.perf_counter_ns())))


async def events(chunks: AsyncIterable[Any]) -> AsyncIterator[dict[str, Any]]:
    """The objects of server-sent events."""
    async for chunk in chunks:
        for data in (chunk if isinstance(chunk, str) else chunk.decode()).split("\n"):
            if data.startswith("data: ") and data != "data: [DONE]":
                yield json.loads(data[len("data: ") :])


def _gather(calls: dict[int, list[str]], deltas: list[Any]) -> None:
    for delta in deltas:
        call = calls.setdefault(delta["index"], ["", "", ""])
        function = delta.get("function") or {}
        for place, text in enumerate((delta.get("id"), function.get("name"), function.get("arguments"))):
            call[place] += text or ""


def _logprobs(choice: dict[str, Any]) -> list[Any]:
    return (choice.get("logprobs") or {}).get("content") or []


def written(value: Any) -> bytes:
    """The JSON of an answer. Unpaired surrogates, which a model may write as escapes and UTF-8 cannot encode, are sent as escapes."""
    return json.dumps(value, ensure_ascii=False).encode(errors="backslashreplace")


def _written(value: dict[str, Any]) -> bytes:
    return written(value) + b"\n"
