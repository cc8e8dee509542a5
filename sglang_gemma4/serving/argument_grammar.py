"""The grammar of a tool's arguments in Gemma 4's syntax, from the JSON schema of its parameters.

Objects have bare keys, strings are enclosed in ``<|"|>``, and the rest is JSON without spaces. Keys come in the order of the chat
template (by name, ignoring case), or in any order if an object has few. As in SGLang's JSON grammars, an object that declares
properties has no others unless its schema allows them.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sglang_gemma4.serving.grammar_rules import Item, Ref, Repeat, Rules, Sequence_, Text
from sglang_gemma4.serving.json_values import TYPES, types_of
from sglang_gemma4.serving.key_grammar import KEY, is_bare, other_keys
from sglang_gemma4.serving.markers import STRING
from sglang_gemma4.serving.number_grammar import ANY_INTEGER, ANY_NUMBER, integers, numbers
from sglang_gemma4.serving.schema_shapes import OF_ARRAYS, OF_OBJECTS, Schema, SchemaError, Shape, Shapes, types
from sglang_gemma4.serving.string_grammar import free_text, pattern

ANY_ORDER = 4
"""Up to this many properties may come in any order: the number of an object's rules is exponential in their number."""
ITEMS = 1024
"""A ``maxItems`` or ``minItems`` beyond this is not enforced."""

LARGEST = 1e40
"""Bounds of numbers beyond this are refused: their grammar grows with the square of their digits."""

_OF_PATTERNS = 16  # steps of work per character of a pattern, which may stand for a range of a class
_CLOSING = ("additionalProperties", "unevaluatedProperties")


class ArgumentGrammar:
    """Turns the schemas of one tool's parameters into rules.

    Attributes:
        widened: keywords of the schema that the grammar does not enforce.
    """

    def __init__(self, root: Schema, rules: Rules, delimiter: Item, shared: dict[str, Ref]) -> None:
        """``delimiter`` begins and ends a string; ``shared`` holds the rules that do not depend on a schema, for all tools."""
        self.rules = rules
        self._delimiter = delimiter
        self._shared = shared
        self._shapes = Shapes(root, rules.work)
        self._of_schema: dict[str, Ref] = {}
        self._root = root

    @property
    def widened(self) -> set[str]:
        return self._shapes.widened

    def arguments(self) -> Ref:
        """The object of arguments, braces included.

        Raises:
            SchemaError: a reference cannot be resolved.
            ValueError: more rules than the limit.
        """
        shapes = [shape for shape in self._shapes.of(self._root) if "object" in (types(shape) or {"object"})]
        return self.rules.add("arguments", [one for shape in shapes for one in self._object(shape)])

    def value(self, schema: Schema) -> Ref:
        """Any value of ``schema``, which is part of the root schema."""
        key = self._shapes.written(schema)
        if key not in self._of_schema:
            self._of_schema[key] = rule = self.rules.reserve("value")
            self.rules.fill(rule, [one for shape in self._shapes.of(schema) for one in self._of_shape(shape)])
        return self._of_schema[key]

    def _of_shape(self, shape: Shape) -> list[Sequence_]:
        allowed = types(shape)
        if "enum" in shape:
            self.rules.work.spend(len(shape["enum"]))
            fits = [value for value in shape["enum"] if allowed is None or not allowed.isdisjoint(types_of(value))]
            return [sequence for value in fits for sequence in self._constant(value)]
        if allowed is None:
            allowed = {kind for kind, words in (("object", OF_OBJECTS), ("array", OF_ARRAYS)) if any(word in shape for word in words)}
            if not allowed:
                return [(self._any(),)]
        found: list[Sequence_] = []
        for kind in TYPES:
            if kind in allowed and not (kind == "integer" and "number" in allowed):
                found += getattr(self, f"_{kind}")(shape)
        return found

    def _constant(self, value: Any) -> list[Sequence_]:
        """One value as the chat template renders it; no alternative if it cannot be written."""
        if isinstance(value, str):
            return [] if STRING in value or "\0" in value else [self._string_of(*([Text(value)] if value else []))]
        if isinstance(value, float) and value == int(value):
            return [(Text(json.dumps(value)),), (Text(str(int(value))),)]
        if isinstance(value, bool | int | float | None):
            return [(Text(json.dumps(value)),)]
        parts = [self._constant(one) for one in (value.values() if isinstance(value, dict) else value)]
        rules = [self.rules.add("constant", part) for part in parts]
        if isinstance(value, list):
            return [(Text("["), *_joined([(rule,) for rule in rules]), Text("]"))]
        pairs = sorted(((key, (*self._key(key), Text(":"), rule)) for key, rule in zip(value, rules, strict=True)), key=_by_key)
        return [(Text("{"), *_joined([pair for _, pair in pairs]), Text("}"))]

    def _boolean(self, _shape: Shape) -> list[Sequence_]:
        return [(Text("true"),), (Text("false"),)]

    def _null(self, _shape: Shape) -> list[Sequence_]:
        return [(Text("null"),)]

    def _integer(self, shape: Shape) -> list[Sequence_]:
        low, high, without_low, without_high = self._bounds(shape)
        if "multipleOf" in shape and shape["multipleOf"] != 1:
            self.widened.add("multipleOf")
        low = low + 1 if low is not None and without_low and low == int(low) else low
        high = high - 1 if high is not None and without_high and high == int(high) else high
        found = integers(low, high)
        return [(self._share("integer", ANY_INTEGER),)] if found is ANY_INTEGER else found

    def _number(self, shape: Shape) -> list[Sequence_]:
        if "multipleOf" in shape:
            self.widened.add("multipleOf")
        found = numbers(self.rules, *self._bounds(shape))
        return [(self._share("number", ANY_NUMBER),)] if found is ANY_NUMBER else found

    def _bounds(self, shape: Shape) -> tuple[float | None, float | None, bool, bool]:
        """Lower and upper bound, and whether each is exclusive.

        Raises:
            SchemaError: a bound is not a number, or is beyond ``LARGEST``.
        """
        low, high = shape.get("minimum"), shape.get("maximum")
        above, below = shape.get("exclusiveMinimum"), shape.get("exclusiveMaximum")
        for bound in (low, high, above, below):
            if bound is not None and not -LARGEST <= bound <= LARGEST:
                raise SchemaError(f"a bound of {str(bound)[:40]} is not enforced; leave out bounds beyond {LARGEST:.0e}")
            self.rules.work.spend(len(str(bound)) ** 2)
        without_low = above is not None and (low is None or above >= low)
        without_high = below is not None and (high is None or below <= high)
        return above if without_low else low, below if without_high else high, without_low, without_high

    def _string(self, shape: Shape) -> list[Sequence_]:
        least, most = shape.get("minLength", 0), shape.get("maxLength")
        if "pattern" in shape:
            self.rules.work.spend(_OF_PATTERNS * len(shape["pattern"]))
            text = pattern(self.rules, shape["pattern"], STRING)
            if text is not None:
                self.widened.update(word for word in ("minLength", "maxLength") if word in shape)
                return [self._string_of(text)]
            self.widened.add("pattern")
        if most is not None and most < least:
            return []
        key = f"text {least} {most}"
        if key not in self._shared:
            self._shared[key] = free_text(self.rules, STRING, int(least), None if most is None else int(most))
        return [self._string_of(self._shared[key])]

    def _string_of(self, *text: Item) -> Sequence_:
        return (self._delimiter, *text, self._delimiter)

    def _array(self, shape: Shape) -> list[Sequence_]:
        first = shape.get("prefixItems", [])
        least, most = int(shape.get("minItems", 0)), shape.get("maxItems")
        if least > ITEMS or (most is not None and most > ITEMS):
            self.widened.update(word for word in ("minItems", "maxItems") if shape.get(word, 0) > ITEMS)
            least, most = min(least, ITEMS), None if most is None or most > ITEMS else most
        most = None if most is None else int(most)
        if most is not None and most < least:
            return []
        if most == 0:
            return [(Text("[]"),)]
        other = self.value(shape.get("items", True))
        if not first:
            more = Repeat((Text(","), other), max(least - 1, 0), None if most is None else most - 1)
            return [*([(Text("[]"),)] if least == 0 else []), (Text("["), other, more, Text("]"))]
        # ``after`` matches what may follow the first ``place`` items.
        count = len(first) if most is None else min(len(first), most)
        rest = Repeat((Text(","), other), max(least - count, 0), None if most is None else most - count)
        after = self.rules.add("items", [(rest, Text("]"))])
        for place in reversed(range(count)):
            comma: list[Item] = [Text(",")] if place else []
            item = (*comma, self.value(first[place]), after)
            after = self.rules.add("items", [item, *([(Text("]"),)] if place >= least else [])])
        return [(Text("["), after)]

    def _object(self, shape: Shape) -> list[Sequence_]:
        properties: Mapping[str, Schema] = shape.get("properties", {})
        required = dict.fromkeys(shape.get("required", ()))
        others = self._other_properties(shape)
        declared = dict(properties)
        for key in required:  # required but not declared: allowed unless the schema forbids it
            declared.setdefault(key, others if others is not None else not any(word in shape for word in _CLOSING))
        writable = {key: schema for key, schema in declared.items() if STRING not in key and "\0" not in key}
        if len(writable) < len(declared) and any(key not in writable for key in required):
            return []
        fields = [
            (key, self.rules.add("pair", [(*self._key(key), Text(":"), self.value(schema))]))
            for key, schema in sorted(writable.items(), key=_by_key)
        ]
        extra = None if others is None or others is False else self._extra(list(writable), others)
        body = self._fields([pair for _, pair in fields], [key in required for key, _ in fields], extra)
        return [(Text("{"), body, Text("}"))]

    def _other_properties(self, shape: Shape) -> Schema | None:
        """The schema of properties that are not declared; None if there must be none."""
        for word in _CLOSING:
            if word in shape:
                said: Schema = shape[word]
                return True if said is False and "patternProperties" in shape else None if said is False else said
        return None if "properties" in shape and "patternProperties" not in shape else True

    def _fields(self, pairs: Sequence[Ref], required: Sequence[bool], extra: Ref | None) -> Ref:
        """The inside of an object. A state is the set of fields written so far, or their number passed if they come in order."""
        if len(pairs) > ANY_ORDER:
            return self._fields_in_order(pairs, required, extra)
        states: dict[tuple[int, bool], Ref] = {}
        todo = [(0, False)]

        def goto(written: int, begun: bool) -> Ref:
            if (written, begun) not in states:
                states[written, begun] = self.rules.reserve("fields")
                todo.append((written, begun))
            return states[written, begun]

        start = goto(0, False)
        todo.pop(0)
        while todo:
            written, begun = todo.pop()
            comma: list[Item] = [Text(",")] if begun else []
            left = [i for i in range(len(pairs)) if not written >> i & 1]
            steps: list[Sequence_] = []
            for i in left:
                steps.append((*comma, pairs[i], goto(written | 1 << i, True)))
            if extra is not None:
                steps.append((*comma, extra, goto(written, True)))
            if not any(required[i] for i in left):
                steps.append(())
            self.rules.fill(states[written, begun], steps)
        return start

    def _fields_in_order(self, pairs: Sequence[Ref], required: Sequence[bool], extra: Ref | None) -> Ref:
        """The inside of an object whose fields come in order. A state is how many were passed, and whether one was written."""
        unwritten = required.index(True) + 1 if True in required else len(pairs) + 1  # nothing is written before the first required one
        states = [[self.rules.reserve("fields") for _ in range(count)] for count in (unwritten, len(pairs) + 1)]
        for begun in (False, True):
            comma: list[Item] = [Text(",")] if begun else []
            for passed, state in enumerate(states[begun]):
                steps: list[Sequence_] = [()] if passed == len(pairs) else [(*comma, pairs[passed], states[True][passed + 1])]
                if passed < len(pairs) and not required[passed]:
                    steps.append((states[begun][passed + 1],))
                if extra is not None:
                    steps.append((*comma, extra, states[True][passed]))
                self.rules.fill(state, steps)
        return states[False][0]

    def _key(self, key: str) -> Sequence_:
        """A key: bare, or as a string if a bare one would be ambiguous."""
        return (Text(key),) if is_bare(key) else self._string_of(*([Text(key)] if key else []))

    def _extra(self, declared: Sequence[str], schema: Schema) -> Ref:
        """A property whose name is not declared."""
        rest = self._share("key_rest", [(), (KEY, Ref("@"))])
        return self.rules.add("other", [(other_keys(self.rules, declared, rest), Text(":"), self.value(schema))])

    def _any(self) -> Ref:
        """Any value at all."""
        if "any" not in self._shared:
            self._shared["any"] = rule = self.rules.reserve("any")
            kinds = (self._string, self._number, self._boolean, self._null)
            key = self.rules.add("any_key", [(KEY, self._share("key_rest", [(), (KEY, Ref("@"))]))])
            pair = (key, Text(":"), rule)
            listed: list[Sequence_] = [(Text("[]"),), (Text("{}"),)]
            for opening, one, closing in (("[", (rule,), "]"), ("{", pair, "}")):
                listed.append((Text(opening), *one, Repeat((Text(","), *one), 0, None), Text(closing)))
            self.rules.fill(rule, [*(sequence for kind in kinds for sequence in kind({})), *listed])
        return self._shared["any"]

    def _share(self, name: str, alternatives: Sequence[Sequence_]) -> Ref:
        """A rule shared by all tools; ``Ref("@")`` in it refers to itself."""
        if name not in self._shared:
            self._shared[name] = rule = self.rules.reserve(name)
            itself = [tuple(rule if item == Ref("@") else item for item in one) for one in alternatives]
            self.rules.fill(rule, itself)
        return self._shared[name]


def _joined(parts: Sequence[Sequence_]) -> Sequence_:
    """``parts`` with commas between them."""
    return tuple(item for place, part in enumerate(parts) for item in (*([Text(",")] if place else []), *part))


def _by_key(pair: tuple[str, Any]) -> str:
    """The chat template orders keys by Jinja's ``dictsort``, which ignores case; keys equal but for case stay in the schema's order."""
    return pair[0].lower()
