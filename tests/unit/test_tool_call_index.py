"""Streamed tool calls, cut at every place, joined as OpenAI's client joins them."""

import asyncio
import importlib
import json
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from openai.lib.streaming._deltas import accumulate_delta

from sglang_gemma4 import patching
from sglang_gemma4.patches.tool_call_index import PATCH
from sglang_gemma4.serving.tool_calls import number_by_call

InChild = Callable[[Callable[[], Any]], Any]
ROME = '<|tool_call>call:weather{city:<|"|>Rome}<|"|>,days:2}<tool_call|>'
OSLO = '<|tool_call>call:weather{city:<|"|>Oslo<|"|>,wind:{unit:<|"|>kn<|"|>}}<tool_call|>'
IN_ROME = {"city": "Rome}", "days": 2}
IN_OSLO = {"city": "Oslo", "wind": {"unit": "kn"}}
TIME = "<|tool_call>call:time{}<tool_call|>"
TEXTS = {
    "same tool twice": (ROME + OSLO, [("weather", IN_ROME), ("weather", IN_OSLO)]),
    "three calls, text before": ("Let me see. " + TIME + "\n" + ROME + TIME, [("time", {}), ("weather", IN_ROME), ("time", {})]),
    "a tool nobody declared": (TIME + "<|tool_call>call:dance{}<tool_call|>" + TIME, [("time", {}), ("dance", {}), ("time", {})]),
    "one call": (OSLO, [("weather", IN_OSLO)]),
}


@pytest.fixture(scope="module", autouse=True)
def sglang_imported() -> None:
    importlib.import_module("sglang.srt.entrypoints.openai.serving_chat")


def chat_server() -> tuple[Any, Any]:
    """SGLang's chat endpoint with just what its tool-call code needs, and a request with two tools."""
    from sglang.srt.entrypoints.openai.protocol import ChatCompletionRequest
    from sglang.srt.entrypoints.openai.serving_chat import OpenAIServingChat

    server = object.__new__(OpenAIServingChat)
    server.tool_call_parser = "gemma4"
    server.tokenizer_manager = SimpleNamespace(tokenizer=None)
    tools = [{"type": "function", "function": {"name": name}} for name in ("time", "weather")]
    return server, ChatCompletionRequest(model="m", messages=[{"role": "user", "content": "?"}], tools=tools)


def stream(pieces: Iterable[str]) -> tuple[list[tuple[str, Any]], list[int], str]:
    """The calls and the text that OpenAI's client ends up with, and the index of each delta."""
    server, request = chat_server()
    parsers: dict[int, Any] = {}
    content = {"meta_info": {"id": "a"}}

    async def events() -> list[str]:
        parts = [*pieces, ""]
        sent = []
        for number, part in enumerate(parts):
            flush = number == len(parts) - 1
            async for event in server._process_tool_call_stream(0, part, parsers, content, request, {}, 0, flush=flush):
                sent.append(event)
        rest = server._check_for_unstreamed_tool_args(parsers[0], content, request, 0, 0)  # at the end of the answer
        return [*sent, rest] if rest else sent

    message: dict[Any, Any] = {}
    indices = []
    for event in asyncio.run(events()):
        delta = json.loads(event.removeprefix("data: "))["choices"][0]["delta"]
        indices += [call["index"] for call in delta.get("tool_calls") or []]
        accumulate_delta(message, {key: value for key, value in delta.items() if value is not None})
    calls = message.get("tool_calls", [])
    assert [call["index"] for call in calls] == list(range(len(calls)))
    assert len({call["id"] for call in calls}) == len(calls)
    named = [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls]
    return named, indices, message.get("content", "")


def applied(switch: str = "1") -> None:
    patching.apply([PATCH], {PATCH.switch: switch, "SGLANG_GEMMA4_STRICT": "1"})


@pytest.mark.parametrize("name", TEXTS)
def test_every_cut_gives_the_same_calls(name: str, in_child: InChild) -> None:
    text, expected = TEXTS[name]

    def child() -> int:
        applied()
        cuts = [[text[:at], text[at:]] for at in range(len(text) + 1)]
        cuts += [[text[i : i + size] for i in range(0, len(text), size)] for size in (1, 2, 3, 5, 8, 13)]
        for pieces in cuts:
            calls, indices, said = stream(pieces)
            assert calls == expected, pieces
            assert said == text.split("<|tool_call>")[0] + ("\n" if "\n" in text else ""), pieces
            assert indices == sorted(indices), pieces
        return len(cuts)

    assert in_child(child) == len(text) + 7


def test_stock_merges_two_calls_of_one_tool(in_child: InChild) -> None:
    def child() -> str:
        applied("0")
        try:
            stream(TEXTS["same tool twice"][0])
        except (AssertionError, ValueError) as error:
            return type(error).__name__
        return "right"

    assert in_child(child) != "right", "SGLang numbers calls itself now: remove the patch"


def test_answers_do_not_share_numbers(in_child: InChild) -> None:
    def child() -> list[Any]:
        applied()
        return [stream([ROME + TIME])[1] for _ in range(2)]

    assert in_child(child) == [[0, 0, 1, 1], [0, 0, 1, 1]]


def test_a_call_cut_off_keeps_its_number(in_child: InChild) -> None:
    def child() -> Any:
        from sglang.srt.function_call.gemma4_detector import Gemma4Detector

        applied()
        detector = Gemma4Detector()
        pieces = [TIME + "<|tool_call>call:weather{city:", '<|"|>Ro']
        return [[(c.tool_index, c.name) for c in detector.parse_streaming_increment(piece, []).calls] for piece in pieces]

    assert in_child(child) == [[[0, "time"], [0, None], [1, "weather"]], []]


def test_without_streaming_calls_are_counted_as_before(in_child: InChild) -> None:
    """serving_chat.py:3201 numbers by call itself."""

    def child() -> Any:
        applied()
        server, request = chat_server()
        result = server._process_tool_calls(TIME + OSLO + TIME, request.tools, {"type": "stop"})
        return [(c.index, c.function.name, json.loads(c.function.arguments)) for c in result.tool_calls]

    assert in_child(child) == [[0, "time", {}], [1, "weather", IN_OSLO], [2, "time", {}]]


class Delta:
    def __init__(self, name: str | None) -> None:
        self.name, self.tool_index = name, -1


@pytest.mark.parametrize(
    ("names", "begun", "expected"),
    [([], 0, []), (["a", None], 1, [0, 0]), ([None], 1, [0]), ([None, "a", None, "b"], 3, [0, 1, 1, 2])],
)
def test_number_by_call(names: list[str | None], begun: int, expected: list[int]) -> None:
    deltas = [Delta(name) for name in names]
    number_by_call(deltas, begun)
    assert [delta.tool_index for delta in deltas] == expected
