"""/v1/chat/completions and /v1/responses: metadata of texts, exact limits, and calls that must come beside an answer's schema."""

import json
from collections.abc import Callable
from typing import Any

JSON_ANSWERS = ("json_schema", "json_object")
VERSIONS = "weight_versions"


def texts_only(metadata: dict[str, Any], *_args: Any, **_kwargs: Any) -> dict[str, Any]:
    """After ``build_endpoint_weight_version_metadata``: OpenAI's metadata are texts, so the versions' ranges are written as JSON."""
    versions = metadata.get(VERSIONS)
    return metadata if versions is None or isinstance(versions, str) else {**metadata, VERSIONS: json.dumps(versions)}


def must_call(tool_choice: Any) -> bool:
    """Whether the answer has to consist of calls: ``tool_choice`` is "required" or names a tool."""
    if isinstance(tool_choice, dict):
        return tool_choice.get("type") in ("function", "custom")
    return tool_choice == "required" or not isinstance(tool_choice, str | None)


def drop_schema(_server: Any, request: Any, *_args: Any, **_kwargs: Any) -> None:
    """Before ``OpenAIServingChat._process_messages``: a schema is one of the answer's text, and an answer that has to call has no text."""
    wanted = getattr(request, "response_format", None)
    if request.tools and must_call(request.tool_choice) and wanted is not None and wanted.type in JSON_ANSWERS:
        request.response_format = None


def exactly(original: Callable[..., Any], request: Any, default_max_tokens: int | None = None, *args: Any, **kwargs: Any) -> Any:
    """Around ``ResponsesRequest.to_sampling_params``: ``max_output_tokens`` is what was asked, without the two that stock takes off.

    Raises:
        ValueError: ``max_output_tokens`` is below 1.
    """
    asked = request.max_output_tokens
    if asked is not None and asked < 1:
        raise ValueError(f"max_output_tokens: {asked} is below 1; give the most tokens of the answer, or leave it out")
    constraint = kwargs.get("tool_call_constraint")
    if constraint and constraint[0] != "full_assistant_ebnf" and must_call(request.effective_tool_choice()):
        request = request.model_copy(update={"text": None})
    parameters = original(request, default_max_tokens, *args, **kwargs)
    limits = [limit for limit in (asked, default_max_tokens) if limit is not None]
    if limits:
        parameters["max_new_tokens"] = min(limits)
    return parameters
