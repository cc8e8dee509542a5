"""/v1/responses, streamed: a request that is refused before its first token is answered with its status, as a whole one is."""

import copy
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any

PREFACE = ("event: response.queued\n", "event: response.created\n", "event: response.in_progress\n")
"""How the events begin that come before anything of the answer."""


class Watched:
    """The generator below a stream of events.

    Attributes:
        refused: status and message, where the first thing that came was an error of the client.
    """

    def __init__(self) -> None:
        self.refused: tuple[int, str] | None = None

    async def over(self, contexts: AsyncIterator[Any]) -> AsyncIterator[Any]:
        """The same contexts, the first of them looked at."""
        from fastapi import HTTPException

        begun = False
        try:
            async for context in contexts:
                if not begun:
                    self._look(getattr(context, "last_output", None))
                begun = True
                yield context
        except (ValueError, HTTPException) as error:
            if not begun:
                self.refused = (error.status_code, str(error.detail)) if isinstance(error, HTTPException) else (400, str(error))
            raise

    def _look(self, output: Any) -> None:
        finish = (output.get("meta_info") or {}).get("finish_reason") if isinstance(output, dict) else None
        if isinstance(finish, dict) and finish.get("type") == "abort" and finish.get("status_code"):
            self.refused = (int(finish["status_code"]), str(finish.get("message")))


async def judged(original: Callable[..., Awaitable[Any]], server: Any, request: Any, raw_request: Any = None) -> Any:
    """Around ``OpenAIServingResponses.create_responses``: a stream begins with its first token, or there is none but an error."""
    if not request.stream:
        return await original(server, request, raw_request)
    watched, own = Watched(), copy.copy(server)
    generate = server._generate_with_builtin_tools
    own._generate_with_builtin_tools = lambda *args, **kwargs: watched.over(generate(*args, **kwargs))
    events = await original(own, request, raw_request)
    if not isinstance(events, AsyncGenerator):
        return events
    first: list[Any] = []
    async for event in events:
        first.append(event)
        if not str(event).startswith(PREFACE):
            break
    if watched.refused is not None:
        await events.aclose()
        status, said = watched.refused
        return server.create_error_response(said, "invalid_request_error" if status < 500 else "server_error", status)
    return _behind(first, events)


async def _behind(first: list[Any], events: AsyncIterator[Any]) -> AsyncGenerator[Any, None]:
    for event in first:
        yield event
    async for event in events:
        yield event
