"""Which request has which number: all of it follows from a seed, the number and the server's /openapi.json."""

import json
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from tests.hostile import from_schema, odd_json, odd_media, odd_schemas, odd_wire, samples
from tests.hostile.exchange import Request

TWO_OF_FIVE = (1, 3)
"""Of five numbers these are schemathesis's."""
OWN = (
    (samples.sample, 10),
    *((odd_json.odd_field, 24), (odd_json.odd_place, 16), (odd_json.odd_text, 7)),
    *((odd_schemas.tool_schema, 12), (odd_schemas.tool_list, 4), (odd_schemas.constraint, 14)),
    *((odd_media.media, 14), (odd_media.upload, 2)),
    *((odd_wire.header, 4), (odd_wire.method, 4), (odd_wire.leaving, 5), (odd_wire.administrative, 5)),
)
"""Our generators, each with its share."""


class Plan:
    """The requests of a run by their numbers, 0 to ``total`` - 1."""

    def __init__(self, openapi: Path, seed: int, total: int) -> None:
        self.openapi, self.seed, self.total = openapi, seed, total
        document = json.loads(openapi.read_text())
        self.fields = _fields(document)
        self.operations = from_schema.operations(document)
        self.cases: dict[from_schema.Place, list[Request]] = {}

    def is_own(self, number: int) -> bool:
        """Whether the request is ours, and needs nothing of schemathesis."""
        return number % 5 not in TWO_OF_FIVE

    def place(self, number: int) -> tuple[from_schema.Place, int]:
        """Where a request of schemathesis's is found."""
        return from_schema.place(2 * (number // 5) + TWO_OF_FIVE.index(number % 5), len(self.operations))

    def generate(self, numbers: list[int]) -> None:
        """Have schemathesis make what these numbers need; ``ready`` says which are there meanwhile."""
        wanted = sorted({self.place(number)[0] for number in numbers if not self.is_own(number)}, key=lambda place: (place[1], place[0]))
        if wanted:
            for place, cases in from_schema.generate(self.openapi, self.seed, wanted):
                self.cases[place] = cases

    def ready(self, number: int) -> bool:
        """Whether the request can be made now."""
        return self.is_own(number) or self.place(number)[0] in self.cases

    def request(self, number: int) -> Request:
        """The request with this number."""
        random = Random(f"{self.seed}/{number}")
        if self.is_own(number):
            makers, shares = zip(*OWN, strict=True)
            maker = random.choices(makers, shares)[0]
            made: Request = maker(random, self.fields) if maker.__module__ == odd_json.__name__ else maker(random)
        else:
            place, item = self.place(number)
            cases = self.cases[place]
            made = odd_json.changed(random, cases[item % len(cases)]) if cases else odd_wire.method(random)
        return replace(made, number=number)


def _fields(openapi: dict[str, Any]) -> dict[str, tuple[str, ...]]:
    """The names of each path's fields."""
    found = {}
    for path, methods in openapi["paths"].items():
        content = methods.get("post", {}).get("requestBody", {}).get("content", {}).get("application/json", {})
        name = content.get("schema", {}).get("$ref", "").rpartition("/")[2]
        if name:
            found[path] = tuple(sorted(openapi["components"]["schemas"][name].get("properties", {})))
    return found
