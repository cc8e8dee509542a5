"""Hooks that constrain required tool calls, and calls of strict tools, in Gemma 4's own syntax."""

from collections.abc import Callable
from typing import Any

from sglang_gemma4 import patching


def remember_tokenizer(
    _result: None, parser: Any, tools: Any, tool_call_parser: str, tokenizer: Any = None, *_args: Any, **_kwargs: Any
) -> None:
    """After ``FunctionCallParser.__init__``: keep the tokenizer, because the grammar names the model's markers by their ids."""
    parser.gemma4_tokenizer = tokenizer


def constrain(
    original: Callable[..., Any], parser: Any, tool_choice: Any, parallel_tool_calls: bool = True, *args: Any, **kwargs: Any
) -> Any:
    """Around ``FunctionCallParser.get_structure_constraint``: a structural tag in Gemma 4's syntax, or None.
    Raises:
        ToolGrammarError: a ValueError, which SGLang answers with status 400.
    """
    if not _is_ours(parser):
        return original(parser, tool_choice, parallel_tool_calls, *args, **kwargs)
    from sglang_gemma4.serving.constrained_calls import call_tag

    def say(message: str) -> None:
        patching.note("tool_grammar", message)

    level = int(parser.tool_strict_level)
    tag = call_tag(parser.tools, tool_choice, parallel_tool_calls is not False, parser.gemma4_tokenizer, level, say)
    return None if tag is None else ("structural_tag", tag)


def owns_format(original: Callable[..., bool], parser: Any) -> bool:
    """Around ``FunctionCallParser.owns_tool_format``: both chat paths then parse a required call in Gemma 4's syntax."""
    return _is_ours(parser) or original(parser)


def from_first_token(result: Any, server: Any, request: Any, *_args: Any, **_kwargs: Any) -> Any:
    """After ``OpenAIServingChat._process_messages``: if the model may think, the grammar holds from the answer's first token.

    Stock waits for the thought's end. If the model then does not think, stock constrains neither calls nor a JSON answer.
    """
    from sglang.srt.entrypoints.openai.serving_responses import OpenAIServingResponses
    from sglang.srt.sampling.sampling_params import set_request_reasoning_in_grammar

    from sglang_gemma4.serving.constrained_calls import CallTag, json_tag, thought_of
    from sglang_gemma4.serving.open_thoughts import opening_of

    constraint = result.tool_call_constraint
    calls = constraint[1] if constraint and isinstance(constraint[1], CallTag) else None
    if not result.require_reasoning or request.regex or request.ebnf or (constraint and calls is None):
        return result
    # If a call is required, SGLang refuses a response_format.
    schema = _json_answer(server, request) if request.tool_choice in ("auto", "none") else None
    if schema is None and (calls is None or request.response_format is not None):
        return result
    if isinstance(server, OpenAIServingResponses):
        patching.note("tool_grammar", "/v1/responses constrains calls behind a thought only: an answer without one is free")
        return result
    tokenizer = server.tokenizer_manager.tokenizer
    prompt = opening_of(result, tokenizer, request)
    if schema is None:
        assert calls is not None
        tag: Any = calls.behind(thought_of(prompt))
    else:
        from sglang.srt.runtime_context import get_serving

        options = get_serving()
        whitespace = {
            "any_whitespace": not options.constrained_json_disable_any_whitespace,
            "max_whitespace_cnt": options.constrained_json_max_whitespace_cnt,
        }
        tag, request.response_format = json_tag(schema, prompt, tokenizer, **whitespace), None
    result.tool_call_constraint = ("structural_tag", tag)
    parameters = {"custom_params": request.custom_params}
    set_request_reasoning_in_grammar(parameters, True)
    request.custom_params = parameters["custom_params"]
    return result


def _json_answer(server: Any, request: Any) -> dict[str, Any] | None:
    """The schema of the JSON answer that ``request`` asks for; None if it asks for none or thoughts and JSON cannot be combined."""
    wanted = request.response_format
    if wanted is None or server.reasoning_parser != "gemma4" or not _has_xgrammar():
        return None
    if wanted.type == "json_object":
        return {"type": "object"}
    return dict(wanted.json_schema.schema_ or {}) if wanted.type == "json_schema" else None


def _is_ours(parser: Any) -> bool:
    """Whether ``parser`` reads Gemma 4's calls and the grammar backend is xgrammar."""
    return isinstance(parser.detector, parser.ToolCallParserEnum["gemma4"]) and _has_xgrammar()


def _has_xgrammar() -> bool:
    from sglang.srt.runtime_context import get_exec

    backend = get_exec().kernel.grammar_backend
    if backend != "xgrammar":
        patching.note("tool_grammar", f"--grammar-backend {backend} knows no grammar of tokens; calls are constrained as JSON, as in stock")
    return bool(backend == "xgrammar")
