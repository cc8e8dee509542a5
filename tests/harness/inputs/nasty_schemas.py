"""JSON schemas of tools of a given size, each made to be expensive in one way, and any of them inside each other."""

import json
from collections.abc import Callable
from typing import Any

Schema = Any


def _times(size: int, one: object) -> int:
    """How many copies of ``one`` make some ``size`` bytes."""
    return max(size // (len(json.dumps(one)) + 2), 1)


def _fan(part: Schema, keyword: str, levels: int) -> Schema:
    """References that double at each level, behind ``keyword``."""
    definitions = {f"d{n}": {keyword: [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(levels)}
    return {"$defs": {**definitions, f"d{levels}": part}, "$ref": "#/$defs/d0"}


def _deep(size: int, opening: str, closing: str) -> Schema:
    levels = min(size // (len(opening) + len(closing)), 200)  # the server refuses bodies that are nested deeper
    return json.loads(opening * levels + "{}" + closing * levels)


def enum_by_references(size: int) -> Schema:
    return {"$defs": {"e": {"enum": list(range(size // 8))}}, "allOf": [{"$ref": "#/$defs/e"}] * _times(size // 3, {"$ref": "#/$defs/e"})}


def objects_by_references(size: int) -> Schema:
    values = [{"a": [n, {"b": True}]} for n in range(size // 40)]
    return {"$defs": {"e": {"enum": values}}, "allOf": [{"$ref": "#/$defs/e"}] * 40}


NASTY: dict[str, Callable[[int], Schema]] = {
    "enum by references": enum_by_references,
    "enum of objects by references": objects_by_references,
    "doubling anyOf": lambda size: _fan({"type": "string"}, "anyOf", size // 60),
    "doubling allOf": lambda size: _fan({"properties": {f"p{n}": {"type": "string"} for n in range(50)}}, "allOf", size // 60),
    "doubling enums": lambda size: _fan({"enum": list(range(size // 10))}, "allOf", 12),
    "doubling oneOf of enums": lambda size: _fan({"enum": list(range(size // 10))}, "oneOf", 8),
    "doubling properties": lambda size: {
        "$defs": {f"d{n}": {"properties": {k: {"$ref": f"#/$defs/d{n + 1}"} for k in "lr"}} for n in range(size // 70)},
        "$ref": "#/$defs/d0",
    },
    "wide allOf": lambda size: {"allOf": [{"properties": {f"k{n}": {"type": "string"}}} for n in range(size // 45)]},
    "wide allOf of required": lambda size: {"allOf": [{"required": [f"k{n}", f"l{n}"]} for n in range(size // 32)]},
    "wide anyOf": lambda size: {"anyOf": [{"properties": {f"k{n}": {"type": "string"}}} for n in range(size // 45)]},
    "anyOf times anyOf": lambda size: {"allOf": [{"anyOf": [{"required": [f"k{n}"]}, {"minProperties": n}]} for n in range(size // 60)]},
    "many properties": lambda size: {"properties": {f"p{n}": {"type": "string"} for n in range(size // 28)}},
    "many properties and others": lambda size: {"properties": {f"p{n}": {} for n in range(size // 10)}, "additionalProperties": True},
    "many required": lambda size: {"required": [f"p{n}" for n in range(size // 9)]},
    "a long key": lambda size: {"properties": {"k" * size: {}}, "additionalProperties": True},
    "long keys": lambda size: {"properties": {c * (size // 30): {} for c in "abcdefghij"}, "additionalProperties": {"type": "null"}},
    "a long constant": lambda size: {"properties": {"a": {"const": "x" * size}}},
    "long constants many times": lambda size: {
        "$defs": {"c": {"enum": ["x" * (size // 2)]}},
        "properties": {"a": _any_of("c", size // 60)},
    },
    "many strings": lambda size: {"properties": {"a": {"enum": [f"value {n}" for n in range(size // 15)]}}},
    "many constants of objects": lambda size: {"properties": {"a": {"enum": [{"x": [n, n]} for n in range(size // 20)]}}},
    "nested constants": lambda size: {"properties": {"a": {"const": _nested(size)}}},
    "nested arrays": lambda size: {"properties": {"a": _deep(size, '{"type":"array","items":', "}")}},
    "nested objects": lambda size: _deep(size, '{"type":"object","properties":{"a":', "}}"),
    "nested anyOf": lambda size: {"properties": {"a": _deep(size, '{"anyOf":[', "]}")}},
    "long tuples": lambda size: {"properties": {"a": {"prefixItems": [{"type": "null"}] * (size // 17), "minItems": 10**9}}},
    "tuples in allOf": lambda size: {"properties": {"a": {"allOf": [{"prefixItems": [{"minimum": n}] * 40} for n in range(size // 700)]}}},
    "bounds of many digits": lambda size: {
        "properties": {f"p{n}": {"type": "number", "minimum": -1e39, "maximum": 3e39} for n in range(size // 60)}
    },
    "bounds beyond": lambda size: {"properties": {"a": {"type": "integer", "minimum": 10**400}}},
    "lengths": lambda size: {
        "properties": {f"p{n}": {"type": "string", "minLength": 4, "maxLength": 10**9 + n} for n in range(size // 60)}
    },
    "many patterns": lambda size: {
        "properties": {f"p{n}": {"type": "string", "pattern": f"^([a-z]{{1,{n % 200 + 1}}})+$"} for n in range(size // 55)}
    },
    "a long pattern": lambda size: {"properties": {"a": {"type": "string", "pattern": "^" + "(a|b)" * (size // 5) + "$"}}},
    "a wide class": lambda size: {
        "properties": {"a": {"pattern": "^[" + "".join(chr(0x4E00 + 2 * n) for n in range(size // 6)) + "]+$", "type": "string"}}
    },
    "a pattern of parentheses": lambda size: {
        "properties": {"a": {"type": "string", "pattern": "^" + "(" * (size // 2) + ")" * (size // 2) + "$"}}
    },
    "long references": lambda size: {"properties": {"a": {"$ref": "#/properties" * (size // 13)}}},
    "references in a row": lambda size: {
        "$defs": {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(size // 33)},
        "$ref": "#/$defs/d0",
    },
    "itself many times": lambda size: {"anyOf": [{"$ref": "#"}] * (size // 15)},
    "itself in properties": lambda size: {
        "properties": {f"p{n}": {"allOf": [{"$ref": "#"}, {"minProperties": n}]} for n in range(size // 60)}
    },
    "types": lambda size: {"properties": {"a": {"type": ["string", "number", "object", "array"] * (size // 40)}}},
    "no schema": lambda size: {"properties": {f"p{n}": {"allOf": 3, "enum": {"a": 1}, "items": [[]]} for n in range(size // 50)}},
}


def _any_of(name: str, count: int) -> Schema:
    return {"anyOf": [{"$ref": f"#/$defs/{name}"}] * count}


def _nested(size: int) -> Any:
    levels = min(size // 2, 200)
    return json.loads("[" * levels + "]" * levels)


def combined(first: str, second: str, size: int) -> Schema:
    """One nasty schema as a property of another."""
    outer, inner = NASTY[first](size // 2), NASTY[second](size // 2)
    definitions = {**inner.pop("$defs", {}), **outer.get("$defs", {})}
    return {**outer, "$defs": definitions, "properties": {**outer.get("properties", {}), "inner": inner}}
