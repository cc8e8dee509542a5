"""Checks a chat's tools and template arguments before the template is rendered."""

from collections.abc import Iterable, Mapping
from typing import Any

from sglang_gemma4.serving import schema_check

_OF_THE_TEMPLATE = ("messages", "conversation", "tools", "add_generation_prompt", "continue_final_message", "self")
_OF_THE_RENDERER = ("tokenize", "tokenizer_kwargs", "return_dict", "return_tensors", "return_assistant_tokens_mask")
_OF_THE_TOKENIZER = ("padding", "truncation", "max_length")
_RESERVED = frozenset((*_OF_THE_TEMPLATE, *_OF_THE_RENDERER, *_OF_THE_TOKENIZER))
"""Arguments that the server itself passes to the template, the renderer and the tokenizer."""


def reason_against(tools: Iterable[Any], template_arguments: Any) -> str | None:
    """Why a chat cannot be served, or None.

    Args:
        tools: SGLang's tools; their parameters may be anything.
        template_arguments: the request's ``chat_template_kwargs``.
    """
    if template_arguments is not None and not isinstance(template_arguments, Mapping):
        return f"chat_template_kwargs: {str(template_arguments)[:60]} is {type(template_arguments).__name__}; give an object"
    if taken := sorted(_RESERVED & set(template_arguments or ())):
        return f"chat_template_kwargs: {', '.join(taken)} cannot be given, the server gives them; leave them out"
    for number, tool in enumerate(tools):
        parameters = tool.function.parameters
        if parameters is None:
            continue
        if not isinstance(parameters, dict):
            kind = type(parameters).__name__
            return f"tools[{number}].function.parameters: {str(parameters)[:60]} is {kind}; give a JSON schema that is an object"
        if wrong := schema_check.fault(parameters):
            return f"tools[{number}].function.parameters: no JSON schema: {wrong[:600]}"
    return None
