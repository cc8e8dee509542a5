"""/v1/responses: a stream that is refused before its first token has the refusal's status, and the list of allowed tools is used."""

import contextvars
import copy
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

from sglang_gemma4.serving.protocols import serves_gemma4
from sglang_gemma4.serving.protocols.stream_start import Opened, Refused, status_of

OURS: contextvars.ContextVar[bool] = contextvars.ContextVar("OURS", default=False)
"""Whether a Gemma 4 server handles the running request."""


def refusal_of(context: Any) -> Refused | None:
    """Status and message if the engine's first output is an abort with a status; otherwise None."""
    output = getattr(context, "last_output", None)
    finish = (output.get("meta_info") or {}).get("finish_reason") if isinstance(output, dict) else None
    if not isinstance(finish, dict) or finish.get("type") != "abort" or not finish.get("status_code"):
        return None
    return status_of(finish["status_code"]), str(finish.get("message"))


async def judged(original: Callable[..., Awaitable[Any]], server: Any, request: Any, raw_request: Any = None) -> Any:
    """Around ``OpenAIServingResponses.create_responses``: SGLang's events are unchanged once the engine has begun to answer."""
    if not server.tokenizer_manager or not serves_gemma4(server.tokenizer_manager):
        return await original(server, request, raw_request)
    OURS.set(True)
    try:
        request = allowed(request)
    except ValueError as error:
        return server.create_error_response(str(error), param="tool_choice")
    if not request.stream:
        return await original(server, request, raw_request)
    opened, own = Opened(), copy.copy(server)
    generate = server._generate_with_builtin_tools
    own._generate_with_builtin_tools = lambda *args, **kwargs: opened.take(generate(*args, **kwargs))
    events = await original(own, request, raw_request)
    if not isinstance(events, AsyncGenerator):
        return events
    await opened.begin(refusal_of)
    if opened.refused is not None:
        await events.aclose()
        status, said = opened.refused
        return server.create_error_response(said, "invalid_request_error" if status < 500 else "server_error", status)
    return events


def allowed(request: Any) -> Any:
    """The request with only the tools that a ``tool_choice`` of type "allowed_tools" lists, and its mode; other requests unchanged.

    SGLang treats such a choice as "auto" with all tools.

    Raises:
        ValueError: the list or the mode is missing, or a tool of the list is not declared.
    """
    choice = request.tool_choice
    if not isinstance(choice, dict) or choice.get("type") != "allowed_tools":
        return request
    listed, mode = choice.get("tools"), choice.get("mode", "auto")
    if mode not in ("auto", "required") or not isinstance(listed, list) or not all(isinstance(one, dict) for one in listed):
        raise ValueError("tool_choice: allowed_tools needs mode 'auto' or 'required' and a list of tools")
    names = [one.get("name") or one.get("type") for one in listed]
    known = {getattr(tool, "name", None) or tool.type: tool for tool in request.tools or []}
    if missing := [name for name in names if name not in known]:
        raise ValueError(f"tool_choice: tool {missing[0]!r:.60} is not declared in tools")
    return request.model_copy(update={"tools": [tool for name, tool in known.items() if name in names], "tool_choice": mode})
