"""Hooks that read thoughts and tool calls with one state machine: in linear time, and with the same result streamed or not."""

from collections.abc import Awaitable, Callable
from typing import Any


def keep_markers(_result: None, server: Any, *_args: Any, **_kwargs: Any) -> None:
    """After ``OpenAIServingChat.__init__``: text-only checkpoints keep their markers in the text too."""
    config = getattr(server.tokenizer_manager.model_config, "hf_config", None)
    server.is_gemma4 = server.is_gemma4 or str(getattr(config, "model_type", "")).startswith("gemma4")


def remember_open_thought(result: Any, server: Any, request: Any, *_args: Any, **_kwargs: Any) -> Any:
    """After ``OpenAIServingChat._process_messages``: note if the template opened a thought, as it does after a tool's result."""
    from sglang_gemma4.serving.markers import THOUGHT_START
    from sglang_gemma4.serving.open_thoughts import opening_of
    from sglang_gemma4.serving.thought_tokens import OPEN_THOUGHT

    if server.is_gemma4 and result.require_reasoning:
        if opening_of(result, server.tokenizer_manager.tokenizer, request):
            request._response_parser_prefix = THOUGHT_START
            request.custom_params = {**(request.custom_params or {}), OPEN_THOUGHT: True}
        result.gemma4_prefix = request._response_parser_prefix
    return result


async def hand_on_prefix(original: Callable[..., Awaitable[Any]], server: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
    """Around ``OpenAIServingResponses._make_request``: copy the prefix from the temporary request it renders to ``request``."""
    made = await original(server, request, *args, **kwargs)
    request._response_parser_prefix = getattr(made[3], "gemma4_prefix", request._response_parser_prefix)
    return made


def know_tools(_result: None, parser: Any, tools: Any, *_args: Any, **_kwargs: Any) -> None:
    """After ``FunctionCallParser.__init__``: pass on the declared tools, which decide what text is a call."""
    from sglang_gemma4.serving.answer_parsers import ToolCalls

    if isinstance(parser.detector, ToolCalls):
        parser.detector.tools = tools


def go_on_with_thought(_result: None, parser: Any, *args: Any, request: Any = None, **_kwargs: Any) -> None:
    """After ``ReasoningParser.__init__``: begin inside a thought if the prompt left one open."""
    from sglang_gemma4.serving.markers import THOUGHT_START

    asked = request if request is not None else next(iter(args[3:4]), None)
    if getattr(asked, "_response_parser_prefix", "") == THOUGHT_START and hasattr(parser.detector, "go_on_with_thought"):
        parser.detector.go_on_with_thought()


def order_chunks(original: Callable[..., Any], server: Any, *args: Any, **kwargs: Any) -> Any:
    """Around ``OpenAIServingChat._generate_stream_content``: in a step that ends a call, its arguments are sent before text."""
    from sglang_gemma4.serving.chunk_order import continuing_first

    chunks = original(server, *args, **kwargs)
    return continuing_first(chunks) if server.is_gemma4 else chunks


def keep_reason(original: Callable[..., Any], server: Any, text: str, tools: Any, finish_reason: Any, *args: Any, **kwargs: Any) -> Any:
    """Around ``OpenAIServingChat._process_tool_calls``: an answer that ends inside a call keeps its finish reason, as when streamed."""
    from sglang_gemma4.serving.answer_parsers import is_whole

    given = dict(finish_reason or {})
    found = original(server, text, tools, finish_reason, *args, **kwargs)
    if server.is_gemma4 and found.tool_calls and not is_whole(found.tool_calls[-1].function.arguments):
        finish_reason.update(given)
    return found


def close_cut_call(serving: Any, response: Any, *_args: Any, **_kwargs: Any) -> None:
    """Before ``AnthropicServing._convert_response``: a call that was cut off is sent as far as it came, as when streamed."""
    from sglang_gemma4.serving.past_calls import close_last

    if serving.openai_serving_chat.is_gemma4 and response.choices:
        close_last(response.choices[0].message.tool_calls)


def repair_history(server: Any, request: Any, *_args: Any, **_kwargs: Any) -> None:
    """Before ``OpenAIServingChat._apply_jinja_template``: repair calls that were cut off or have no arguments, so that they render."""
    from sglang_gemma4.serving.past_calls import repair

    if server.is_gemma4:
        repair(request.messages)


def find_markers(_result: None, scheduler: Any, *_args: Any, **_kwargs: Any) -> None:
    """After ``Scheduler.init_tokenizer``: store the markers' token ids in the model's configuration."""
    from sglang.srt.runtime_context import get_serving

    from sglang_gemma4.serving.thought_tokens import MarkerIds

    ids = MarkerIds.of(scheduler.tokenizer) if get_serving().reasoning_parser == "gemma4" and scheduler.tokenizer else None
    scheduler.model_config.gemma4_marker_ids = ids


def count_thoughts(original: Callable[..., None], processor: Any, req: Any, next_token_id: Any) -> None:
    """Around ``SchedulerBatchResultProcessor._maybe_update_reasoning_tokens``: count thought tokens in the request's answer so far."""
    from sglang_gemma4.serving import thought_tokens

    ids = getattr(processor.model_config, "gemma4_marker_ids", None)
    if ids is None:
        original(processor, req, next_token_id)
        return
    req.gemma4_marker_ids = ids
    req.reasoning_tokens = thought_tokens.count(req, ids, len(req.output_ids))


def leave_out_the_stop(_accumulator: Any, *, req: Any) -> None:
    """Before part of an answer is sent: leave tokens after the stop out of the count, as they are not part of the answer."""
    from sglang_gemma4.serving import thought_tokens

    ids = getattr(req, "gemma4_marker_ids", None)
    if ids is not None:
        req.reasoning_tokens = thought_tokens.count(req, ids, len(req.output_ids_through_stop))
