"""Number streamed tool calls by call."""

from typing import Any

from sglang_gemma4.patching import Hook, Patch
from sglang_gemma4.serving.tool_calls import number_by_call


def renumber(result: Any, detector: Any, *_args: Any, **_kwargs: Any) -> None:
    """After ``Gemma4Detector.parse_streaming_increment``; its ``current_tool_id`` is the last call begun, from 0."""
    number_by_call(result.calls, calls_begun=detector.current_tool_id + 1)


PATCH = Patch(
    name="tool_call_index",
    switch="SGLANG_GEMMA4_TOOL_CALL_INDEX",
    why="A streamed call carries its tool's position in the request as index: two calls of one tool become one in the "
    "client, with the arguments run together.",
    evidence="srt/function_call/gemma4_detector.py:380, 411 · srt/entrypoints/openai/serving_chat.py:3725 "
    "(the non-streaming path counts calls: :3201)",
    remove_when="Gemma4Detector.parse_streaming_increment sets tool_index to the call's ordinal.",
    hooks=(
        Hook(
            "sglang.srt.function_call.gemma4_detector.Gemma4Detector.parse_streaming_increment",
            "after",
            renumber,
            "1cba4f471912",
        ),
    ),
)
