"""The types of a value and the schemas of its parts, according to a tool's JSON schema.

Answers are converted with these types, but not validated. An invalid schema says nothing about a value. Results are computed on demand and
cached: an answer's cost depends on its schemas, not on its length. It is limited by the answer's budget.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from sglang_gemma4.serving.json_values import types_of
from sglang_gemma4.serving.schema_shapes import Schema, Shape, Shapes
from sglang_gemma4.serving.work_budget import PARSER, TooMuchWorkError, Work

logger = logging.getLogger(__name__)
_OTHER = object()
"""The common place of all values whose key no shape declares."""


class Schemas:
    """The shapes that a value may have; no shape means that nothing is known.

    Attributes:
        shapes: the shapes.
    """

    def __init__(self, root: Shapes, shapes: Sequence[Shape] = ()) -> None:
        self.shapes = shapes
        self._root = root
        self._parts: dict[object, Schemas] = {}
        self._types: list[frozenset[str] | None] = []

    def part(self, place: object, schema_of: Callable[[Shape], Schema]) -> "Schemas":
        """The schemas of the part of the value at ``place``, which ``schema_of`` takes from each shape."""
        if not self.shapes:
            return UNKNOWN
        if place not in self._parts:
            self._parts[place] = Schemas(self._root, self._of_part(schema_of))
        return self._parts[place]

    def _of_part(self, schema_of: Callable[[Shape], Schema]) -> list[Shape]:
        try:
            return [found for shape in self.shapes for found in self._root.of(schema_of(shape))]
        except (ValueError, TypeError, AttributeError, LookupError, RecursionError):
            return []

    def declares(self, keyword: str, key: object) -> bool:
        """Whether a shape has ``key`` under ``keyword``."""
        return any(key in part for shape in self.shapes if isinstance(part := shape.get(keyword), Mapping))

    def keys(self, keyword: str) -> list[str]:
        """The keys that the shapes have under ``keyword``, in order."""
        found = (part for shape in self.shapes if isinstance(part := shape.get(keyword), Mapping))
        return [str(key) for part in found for key in part]

    def types(self) -> frozenset[str] | None:
        """The JSON types that the schemas name; None if one of them names none."""
        if not self._types:
            self._types.append(self._named())
        return self._types[0]

    def _named(self) -> frozenset[str] | None:
        named: set[str] = set()
        for shape in self.shapes:
            kind = shape.get("type")
            found = {kind} if isinstance(kind, str) else set(kind or ())
            found = found or self._of_values(shape.get("enum", ()))
            if not found:
                return None
            named.update(str(one).lower() for one in found)
        return frozenset(named) or None

    def _of_values(self, values: Iterable[Any]) -> set[str]:
        found: set[str] = set()
        try:
            for value in values:
                self._root.work.spend(1)
                found.update(types_of(value))
        except TooMuchWorkError:
            return set()
        return found


UNKNOWN = Schemas(Shapes(True))


class ToolSchemas(Mapping[str, Schemas]):
    """Parameter schemas of an answer's tools by tool name; each is read when the tool is first called.

    Args:
        parameters: each tool's JSON schema.
        work: the budget for all of them; once it is spent, values are read as without a schema, which :meth:`say` logs.
    """

    def __init__(self, parameters: Mapping[str, object], work: Work | None = None) -> None:
        self._parameters = parameters
        self._work = work or Work(PARSER)
        self._known: dict[str, Schemas] = {}

    def __getitem__(self, name: str) -> Schemas:
        if name not in self._known:
            self._known[name] = whole(self._parameters[name], self._work)
        return self._known[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parameters)

    def __len__(self) -> int:
        return len(self._parameters)

    def say(self) -> None:
        """Log a warning if the budget was spent."""
        if not self._work.left:
            logger.warning(
                "some of an answer's calls were read without their schemas, which need more than %s steps of work", self._work.limit
            )


def whole(schema: object, work: Work | None = None) -> Schemas:
    """The schemas of a tool's parameters; ``work`` is the budget for reading them."""
    if not isinstance(schema, Mapping):
        return UNKNOWN
    return Schemas(Shapes(schema, work or Work(PARSER)), [{}]).part("whole", lambda _: schema)


def member(schemas: Schemas, key: str) -> Schemas:
    """The schemas of an object's value under ``key``."""
    place = ("key", key) if schemas.declares("properties", key) else _OTHER
    return schemas.part(place, lambda shape: shape.get("properties", {}).get(key, shape.get("additionalProperties", True)))


def element(schemas: Schemas, index: int) -> Schemas:
    """The schemas of an array's value at ``index``."""

    def at(shape: Shape) -> Schema:
        first: Sequence[Schema] = shape.get("prefixItems", ())
        other: Schema = shape.get("items", True)
        return first[index] if index < len(first) else other

    most = max((len(first) for shape in schemas.shapes if isinstance(first := shape.get("prefixItems"), list)), default=0)
    return schemas.part(min(index, most), at)


def types(schemas: Schemas) -> frozenset[str] | None:
    """The JSON types that the schemas name; None if one of them names none."""
    return schemas.types()
