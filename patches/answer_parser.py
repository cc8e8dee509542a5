"""Thoughts and tool calls are read by one state machine: linear time, the same streamed or not."""

from typing import Any

from sglang_gemma4 import uses
from sglang_gemma4.patching import Entry, Hook, Patch

OURS = "sglang_gemma4.serving.answer_parsers"
CALLS = "sglang.srt.function_call.function_call_parser.FunctionCallParser"
PARSER = "sglang.srt.parser.reasoning_parser.ReasoningParser"
CHAT = "sglang.srt.entrypoints.openai.serving_chat.OpenAIServingChat"


def keep_markers(_result: None, server: Any, *_args: Any, **_kwargs: Any) -> None:
    """After ``OpenAIServingChat.__init__``: text-only checkpoints keep their markers in the text too."""
    config = getattr(server.tokenizer_manager.model_config, "hf_config", None)
    server.is_gemma4 = server.is_gemma4 or str(getattr(config, "model_type", "")).startswith("gemma4")


def remember_open_thought(result: Any, server: Any, request: Any, *_args: Any, **_kwargs: Any) -> Any:
    """After ``OpenAIServingChat._process_messages``: a template may open the thought itself, as after a tool's result."""
    from sglang_gemma4.serving.answer import ends_in_thought, prompt_of
    from sglang_gemma4.serving.markers import THOUGHT_START

    if server.is_gemma4 and result.require_reasoning and ends_in_thought(prompt_of(result, server.tokenizer_manager.tokenizer)):
        request._response_parser_prefix = THOUGHT_START
    return result


def go_on_with_thought(_result: None, parser: Any, *args: Any, request: Any = None, **_kwargs: Any) -> None:
    """After ``ReasoningParser.__init__``, for an answer whose prompt left a thought open."""
    from sglang_gemma4.serving.markers import THOUGHT_START

    asked = request if request is not None else next(iter(args[3:4]), None)
    if getattr(asked, "_response_parser_prefix", "") == THOUGHT_START and hasattr(parser.detector, "go_on_with_thought"):
        parser.detector.go_on_with_thought()


PATCH = Patch(
    switch="SGLANG_GEMMA4_ANSWER_PARSER",
    why="Stock's parser never ends on some arguments, ends a call at <tool_call|> inside a string, makes null a string, drops text "
    "behind a call and calls inside thoughts, leaks a second thought into the content, takes an answer without a thought for one, and "
    "numbers streamed calls by tool. Thoughts of a text-only checkpoint lose their markers before they are parsed.",
    evidence="srt/function_call/gemma4_detector.py:51 (the loop), :93, :259, :380, :411 · srt/parser/reasoning_parser.py:154, 224, 1320 · "
    "crash_repro/tool_parser_hang.py, tool_answers.py, tool_call_index.py, "
    "thinking_answers.py, thinking_text_only.py · runs/2026-11-24-answer-parser",
    remove_when="SGLang's gemma4 parsers pass tests/unit/test_answer.py.",
    uses=(uses.gemma4_parser,),
    hooks=(
        Entry(f"{CALLS}.ToolCallParserEnum", "gemma4", f"{OURS}:ToolCalls", "b2781a273c1f"),
        Entry(f"{PARSER}.DetectorMap", "gemma4", f"{OURS}:Thoughts", "f36b30f30245"),
        Hook(f"{CHAT}.__init__", "after", keep_markers, "51e24292b11d"),
        Hook(f"{CHAT}._process_messages", "after", remember_open_thought, "80c3dd483728"),
        Hook(f"{PARSER}.__init__", "after", go_on_with_thought, "0ca76ebd2ed9"),
    ),
)
