"""Takes a stream's first item before the answer's status is sent, so that a refusal has its own status."""

import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

logger = logging.getLogger(__name__)
Refused = tuple[int, str]
"""A status and a message."""


class Opened:
    """A generator whose first item has been taken.

    Attributes:
        refused: status and message if the generator began with an error, otherwise None.
    """

    def __init__(self) -> None:
        self.refused: Refused | None = None
        self._source: AsyncIterator[Any] | None = None
        self._first: list[Any] = []

    def take(self, source: AsyncIterator[Any]) -> AsyncIterator[Any]:
        """The items of ``source``, of which :meth:`begin` takes the first."""
        self._source = source
        return self._items(source)

    async def begin(self, refusal_of: Callable[[Any], Refused | None]) -> None:
        """Wait for the first item; ``refusal_of`` gives its status and message if it is an error."""
        from fastapi import HTTPException

        source, self._source = self._source, None
        if source is None:
            return
        try:
            self._first.append(await anext(source))
            self.refused = refusal_of(self._first[0])
        except StopAsyncIteration:
            return
        except HTTPException as error:
            self.refused = error.status_code, str(error.detail)
        except ValueError as error:
            self.refused = 400, str(error)
        except Exception:
            logger.exception("a stream failed before its first token")
            self.refused = 500, "Internal server error"

    async def _items(self, source: AsyncIterator[Any]) -> AsyncIterator[Any]:
        while self._first:
            yield self._first.pop()
        async for item in source:
            yield item


def status_of(code: Any) -> int:
    """An error's status: ``code`` if it is an integer from 400 to 599, otherwise 500."""
    return int(code) if isinstance(code, int) and not isinstance(code, bool) and 400 <= code <= 599 else 500
