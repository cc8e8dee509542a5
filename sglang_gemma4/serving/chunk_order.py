"""Orders one step's chunks: those that continue a call are sent before text and thoughts, which end the call for some clients."""

import json
from collections.abc import AsyncIterator

_DATA = "data: "


def continues_call(chunk: str) -> bool:
    """Whether a chunk of a chat stream has more arguments of a call whose name was sent before."""
    if not chunk.startswith(_DATA) or '"tool_calls":[{' not in chunk:
        return False
    (choice,) = json.loads(chunk[len(_DATA) :])["choices"]
    return not any(call["function"].get("name") for call in choice["delta"].get("tool_calls") or [])


async def continuing_first(chunks: AsyncIterator[str]) -> AsyncIterator[str]:
    """The chunks of one step; those that continue the call of an earlier step are moved to the front.

    Chunks after the first one that begins a call stay in place.
    """
    before: list[str] = []
    begun = False
    async for chunk in chunks:
        if begun or continues_call(chunk):
            yield chunk
        elif '"tool_calls":[{' in chunk:
            begun = True
            for held in before:
                yield held
            before = []
            yield chunk
        else:
            before.append(chunk)
    for held in before:
        yield held
