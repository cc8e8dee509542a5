"""What one large schema costs a server that does nothing else: seconds of CPU of all its processes, beyond a request without a schema.

On cores that do other things, the CPU engine's scheduler uses up to 6 s more for any one: an enum of 200 texts cost 2.2, 6.0 and 0.3 s.
What seems dear is therefore sent again, under another title so that no cache knows it, and the least counts. A trial's processor time is
not in these sums, since nobody waits for its process; it has a limit of its own.
"""

import statistics
from collections.abc import Callable
from typing import Any

from tests.hostile.bases import CHAT, FUNCTION
from tests.hostile.exchange import json_request, send
from tests.hostile.odd_schemas import SCHEMAS

NAMES = (
    *("100 kB of texts", "100 kB of properties", "100 kB of anyOf", "100 kB of $refs", "enum of 6,000 texts", "enum of 1,500 numbers"),
    *("shared enum allOf large", "$ref doubling allOf", "1,000 properties", "3,000 optional", "anyOf of 500", "nested properties 300"),
)
MOST = 0.5
"""Seconds of CPU that one schema of up to 100 kB may cost, all processes together."""
TIMES = 8
"""Most times that one schema is sent in one use: once on idle cores."""
Use = Callable[[Any], dict[str, Any]]


def _tool(choice: str, schema: Any) -> dict[str, Any]:
    return {**CHAT, "tools": [{"type": "function", "function": {**FUNCTION, "parameters": schema}}], "tool_choice": choice, "stream": True}


USES: dict[str, Use] = {
    "tool, auto": lambda schema: _tool("auto", schema),
    "tool, required": lambda schema: _tool("required", schema),
    "format": lambda schema: {**CHAT, "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}},
}


def of_schemas(address: tuple[str, int], seconds: Callable[[], float], limit: float) -> dict[str, float]:
    """Seconds of CPU by schema and use.

    Args:
        address: the server's.
        seconds: CPU of all its processes, ever.
        limit: seconds within which each request is answered.
    """

    def cost(body: dict[str, Any]) -> float:
        before = seconds()
        send(json_request("cost", "/v1/chat/completions", body), address, limit)
        return seconds() - before

    without = statistics.median(cost(CHAT) for _ in range(5))

    def least(name: str, make: Use) -> float:
        found = float("inf")
        for time in range(TIMES):
            found = min(found, cost(make({**SCHEMAS[name](), "title": f"time {time}"})) - without)
            if found <= MOST:
                break
        return round(found, 2)

    return {f"{name}, {use}": least(name, make) for name in NAMES for use, make in USES.items()}
