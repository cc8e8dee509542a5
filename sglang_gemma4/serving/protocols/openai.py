"""/v1/chat/completions and /v1/responses: string metadata, exact limits, and required calls together with an answer's schema."""

import json
import logging
from collections.abc import Callable
from functools import cache
from typing import Any

from sglang_gemma4.serving.protocols import serves_gemma4
from sglang_gemma4.serving.protocols.responses import OURS

logger = logging.getLogger(__name__)
JSON_ANSWERS = ("json_schema", "json_object")
VERSIONS = "weight_versions"


def texts_only(answer: Any, server: Any, *_args: Any, **_kwargs: Any) -> Any:
    """After a whole chat completion or completion is built: make its metadata strings, as in OpenAI's API.

    The weight versions are JSON text in ``metadata``, and a list in ``sglext``.
    """
    versions = (answer.metadata or {}).get(VERSIONS)
    if versions is None or isinstance(versions, str) or not serves_gemma4(server.tokenizer_manager):
        return answer
    given: Any = type(answer)
    kind, extension = _kinds(given)
    fields = {name: getattr(answer, name) for name in type(answer).model_fields}
    others = {name: getattr(answer.sglext, name) for name in type(answer.sglext).model_fields} if answer.sglext else {}
    fields["metadata"] = {**answer.metadata, VERSIONS: json.dumps(versions)}
    fields["sglext"] = extension.model_construct(**others, **{VERSIONS: versions})
    return kind.model_construct(**fields)


@cache
def _kinds(answer: Any) -> tuple[type[Any], type[Any]]:
    """Subclasses of SGLang's answer type and of its extension, with a field for the weight versions."""
    from pydantic import create_model
    from sglang.srt.entrypoints.openai.protocol import SglExt

    extension = create_model("SglExt", __base__=SglExt, **{VERSIONS: (list[Any] | None, None)})  # type: ignore[call-overload]
    return create_model(answer.__name__, __base__=answer, sglext=(extension | None, None)), extension


def must_call(tool_choice: Any) -> bool:
    """Whether the answer has to consist of calls: ``tool_choice`` is "required" or names a tool."""
    if isinstance(tool_choice, dict):
        return tool_choice.get("type") in ("function", "custom")
    return tool_choice == "required" or not isinstance(tool_choice, str | None)


def drop_schema(server: Any, request: Any, *_args: Any, **_kwargs: Any) -> None:
    """Before ``OpenAIServingChat._process_messages``: drop the schema of the answer's text if the answer must be a call, without text."""
    wanted = getattr(request, "response_format", None)
    forced = request.tools and must_call(request.tool_choice) and wanted is not None and wanted.type in JSON_ANSWERS
    if forced and serves_gemma4(server.tokenizer_manager):
        request.response_format = None
        say_dropped("response_format")


@cache
def say_dropped(field: str) -> None:
    """Log, once per process and field, that a field is left out because a call is required."""
    logger.warning("%s is left out where tool_choice asks for a call: such an answer has no text for the schema (said once)", field)


def exactly(original: Callable[..., Any], request: Any, default_max_tokens: int | None = None, *args: Any, **kwargs: Any) -> Any:
    """Around ``ResponsesRequest.to_sampling_params``: use ``max_output_tokens`` as given; stock subtracts two.

    Raises:
        ValueError: ``max_output_tokens`` is below 1.
    """
    if not OURS.get():
        return original(request, default_max_tokens, *args, **kwargs)
    asked = request.max_output_tokens
    if asked is not None and asked < 1:
        raise ValueError(f"max_output_tokens: {asked} is below 1; give the most tokens of the answer, or leave it out")
    constraint = kwargs.get("tool_call_constraint")
    if constraint and constraint[0] != "full_assistant_ebnf" and must_call(request.effective_tool_choice()):
        if request.text is not None and request.has_json_schema_constraint():
            say_dropped("text.format")
        request = request.model_copy(update={"text": None})
    parameters = original(request, default_max_tokens, *args, **kwargs)
    limits = [limit for limit in (asked, default_max_tokens) if limit is not None]
    if limits:
        parameters["max_new_tokens"] = min(limits)
    return parameters
