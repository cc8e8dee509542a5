"""Odd schemas, regular expressions and grammars, as tools' parameters and as response formats."""

import json
from collections.abc import Callable
from random import Random
from typing import Any

from tests.hostile.bases import ASK, CHAT, FUNCTION, MODEL, SAID
from tests.hostile.exchange import Request, json_request


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _nested(depth: int, keyword: str) -> Any:
    value: Any = {"type": "string"}
    for _ in range(depth):
        value = (
            {"properties": {"a": value}, "type": "object"}
            if keyword == "properties"
            else {keyword: value if keyword in ("not", "items") else [value]}
        )
    return value


def _doubling(levels: int, keyword: str) -> Any:
    definitions: dict[str, Any] = {"d0": {"type": "integer"}}
    for level in range(1, levels):
        definitions[f"d{level}"] = {keyword: [{"$ref": f"#/$defs/d{level - 1}"}] * 2}
    return {"$defs": definitions, "$ref": f"#/$defs/d{levels - 1}"}


def _shared_enum(values: int, uses: int, keyword: str = "allOf") -> Any:
    return {"$defs": {"e": {"enum": list(range(values))}}, keyword: [{"$ref": "#/$defs/e"}] * uses}


SCHEMAS: dict[str, Callable[[], Any]] = {
    "true": lambda: True,
    "false": lambda: False,
    "null": lambda: None,
    "a text": lambda: "object",
    "a number": lambda: 7,
    "a list": lambda: [{"type": "object"}],
    "empty": dict,
    "JSON in a text": lambda: json.dumps(FUNCTION["parameters"]),
    "type unknown": lambda: {"type": "fruit"},
    "type a number": lambda: {"type": 3},
    "types a list": lambda: _object(a={"type": ["string", "null", "integer"]}),
    "types empty": lambda: {"type": []},
    "properties a list": lambda: {"type": "object", "properties": [1]},
    "properties true": lambda: _object(a=True, b=False),
    "required unknown": lambda: {"type": "object", "required": ["x", "y"]},
    "required a text": lambda: {"type": "object", "required": "x"},
    "required numbers": lambda: {"type": "object", "required": [1, None]},
    "enum empty": lambda: _object(a={"enum": []}),
    "enum a text": lambda: _object(a={"enum": "abc"}),
    "enum mixed": lambda: _object(a={"enum": [1, 1.0, True, "1", None, [1], {"a": 1}]}),
    "enum of 200": lambda: _object(a={"enum": [f"v{n}" for n in range(200)]}),
    "enum of 1,500 numbers": lambda: _object(a={"enum": list(range(1_500))}),
    "enum of 6,000 texts": lambda: _object(a={"enum": [f"value {n}" for n in range(6_000)]}),
    "enum of objects": lambda: _object(a={"enum": [{"n": n, "l": [n]} for n in range(600)]}),
    "const nan": lambda: _object(a={"const": float("nan")}),
    "const huge": lambda: _object(a={"const": 10**400}),
    "bounds crossed": lambda: _object(a={"type": "integer", "minimum": 5, "maximum": 1}),
    "bounds huge": lambda: _object(a={"type": "integer", "minimum": -(10**40), "maximum": 10**40}),
    "bounds nan": lambda: _object(a={"type": "number", "minimum": float("nan")}),
    "bounds texts": lambda: _object(a={"type": "number", "minimum": "0"}),
    "multipleOf 0": lambda: _object(a={"type": "number", "multipleOf": 0}),
    "multipleOf 7919": lambda: _object(a={"type": "integer", "multipleOf": 7919}),
    "length -1": lambda: _object(a={"type": "string", "minLength": -1}),
    "length 10^9": lambda: _object(a={"type": "string", "minLength": 10**9}),
    "length 10^5": lambda: _object(a={"type": "string", "minLength": 10**5, "maxLength": 10**5}),
    "items 10^9": lambda: _object(a={"type": "array", "items": {"type": "integer"}, "minItems": 10**9}),
    "items 2,000": lambda: _object(a={"type": "array", "items": {"type": "integer"}, "minItems": 2_000}),
    "items a list": lambda: _object(a={"type": "array", "items": [{"type": "integer"}, {"type": "string"}]}),
    "prefixItems": lambda: _object(a={"type": "array", "prefixItems": [{"type": "integer"}] * 50, "items": False}),
    "properties 10^9": lambda: {"type": "object", "minProperties": 10**9, "additionalProperties": {"type": "integer"}},
    "pattern bad": lambda: _object(a={"type": "string", "pattern": "(["}),
    "pattern slow": lambda: _object(a={"type": "string", "pattern": "^(a+)+$"}),
    "pattern look": lambda: _object(a={"type": "string", "pattern": "(?=a)b(?<!c)\\1"}),
    "pattern counts": lambda: _object(a={"type": "string", "pattern": "^(a{0,900}){0,900}$"}),
    "pattern unicode": lambda: _object(a={"type": "string", "pattern": "^[\\p{L}👩-👪]+$"}),
    "patternProperties": lambda: {"type": "object", "patternProperties": {"(a+)+$": {"type": "integer"}, "[": True}},
    "format odd": lambda: _object(a={"type": "string", "format": "no-such"}, b={"type": "string", "format": "date-time"}, c={"format": 1}),
    "$ref missing": lambda: {"$ref": "#/$defs/none"},
    "$ref itself": lambda: {"$ref": "#"},
    "$ref a circle": lambda: {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
    "$ref a tree": lambda: {"$defs": {"t": _object(l={"anyOf": [{"$ref": "#/$defs/t"}, {"type": "null"}]})}, "$ref": "#/$defs/t"},
    "$ref far": lambda: {"$ref": "http://127.0.0.1:1/schema.json"},
    "$ref a file": lambda: {"$ref": "file:///etc/passwd"},
    "$ref a number": lambda: {"$ref": 5},
    "$ref odd pointer": lambda: {"$defs": {"a/b~": {}}, "$ref": "#/$defs/a~1b~0/~2/%zz"},
    "$ref 400 in a row": lambda: {"$defs": {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(400)}, "$ref": "#/$defs/d0"},
    "$ref doubling allOf": lambda: _doubling(24, "allOf"),
    "$ref doubling anyOf": lambda: _doubling(24, "anyOf"),
    "$ref doubling oneOf": lambda: _doubling(20, "oneOf"),
    "shared enum allOf": lambda: _shared_enum(400, 20),
    "shared enum allOf large": lambda: _shared_enum(2_000, 20),
    "shared enum anyOf": lambda: _shared_enum(1_500, 20, "anyOf"),
    "$dynamicRef": lambda: {"$dynamicAnchor": "n", "type": "object", "properties": {"c": {"$dynamicRef": "#n"}}},
    "$id odd": lambda: {"$id": "http://[", "$schema": "x", "type": "object"},
    "nested properties 60": lambda: _nested(60, "properties"),
    "nested properties 300": lambda: _nested(300, "properties"),
    "nested items 300": lambda: _nested(300, "items"),
    "nested anyOf 300": lambda: _nested(300, "anyOf"),
    "nested allOf 300": lambda: _nested(300, "allOf"),
    "nested not 300": lambda: _nested(300, "not"),
    "nested if 200": lambda: _nested_if(200),
    "1,000 properties": lambda: _object(**{f"p{n}": {"type": "integer"} for n in range(1_000)}),
    "3,000 optional": lambda: {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(3_000)}},
    "odd names": lambda: _object(**{"": {}, '"': {}, "\\": {}, "\n": {}, '<|"|>': {}, "é😀": {}, "\ud800": {}, "a" * 5_000: {}}),
    "allOf crossed": lambda: {"allOf": [{"type": "object"}, {"type": "array"}, False]},
    "anyOf of 500": lambda: _object(a={"anyOf": [_object(**{f"k{n}": {"const": n}}) for n in range(500)]}),
    "oneOf empty": lambda: {"oneOf": []},
    "anyOf a text": lambda: {"anyOf": "x"},
    "not everything": lambda: {"not": {}},
    "dependent": lambda: {"dependentSchemas": {"a": {"required": ["b"]}}, "dependentRequired": {"a": "b"}, "unevaluatedProperties": False},
    "additional deep": lambda: {"type": "object", "additionalProperties": {"additionalProperties": {"additionalProperties": False}}},
    "contains": lambda: _object(a={"type": "array", "contains": {"const": 1}, "minContains": 10**6, "uniqueItems": True}),
    "title of 50 kB": lambda: {"type": "object", "title": "t" * 50_000, "description": "d" * 20_000},
    "100 kB of texts": lambda: _object(a={"enum": ["x" * 90 + str(n) for n in range(1_000)]}),
    "100 kB of properties": lambda: _object(**{f"property_{n}": {"type": "string", "maxLength": n} for n in range(1_700)}),
    "100 kB of anyOf": lambda: {"anyOf": [_object(**{f"p{n}": {"enum": [n, n + 1, "x"]}}) for n in range(1_000)]},
    "100 kB of $refs": lambda: {
        "$defs": {"e": {"enum": list(range(3_000))}},
        **_object(**{f"p{n}": {"$ref": "#/$defs/e"} for n in range(2_000)}),
    },
}
"""Schemas of every shape that is costly, wrong or rare, up to 100 kB."""


def _nested_if(depth: int) -> Any:
    value: Any = {}
    for _ in range(depth):
        value = {"if": value, "then": {"const": 1}, "else": {"not": {"const": 2}}}
    return value


EXPRESSIONS: dict[str, Any] = {
    "plain": "[a-z]{2,5}",
    "empty": "",
    "open": "([",
    "slow": "(a+)+b",
    "counts": "((a{0,200}){0,200}){0,200}",
    "10^9": "a{1000000000}",
    "alternatives": "|".join(f"w{n}" for n in range(3_000)),
    "look": "(?=x)y",
    "back": "(a)\\1",
    "unicode": "[\\u{1F600}-\\x{10FFFF}]",
    "lone": "\ud800",
    "range": "[z-a]",
    "star": "*a",
    "groups": "(" * 500 + "a" + ")" * 500,
    "any": ".*",
    "NUL": "a\x00",
    "number": 5,
    "list": ["a"],
    "never": "[^\\x00-\\U0010ffff]",
    "classes": "[[:alpha:]]+\\p{Han}",
    "flags": "(?i)(?x)a",
    "anchors": "^$^$",
    "long": "(abc|de?f*)" * 800,
    "named": "(?P<n>a)(?P=n)",
}
GRAMMARS: dict[str, Any] = {
    "plain": 'root ::= "a" | "b"',
    "empty": "",
    "no root": 'x ::= "a"',
    "left": 'root ::= root "a" | "b"',
    "left both": 'root ::= x "a"\nx ::= root "b" | "c"',
    "circle": "root ::= x\nx ::= y\ny ::= x",
    "nothing": 'root ::= ""',
    "unknown": "root ::= nobody",
    "bad": "root ::= [",
    "number": 5,
    "braces": "root ::= {",
    "ambiguous": 'root ::= a a a a a a a a\na ::= "x" a | "x" | ""',
    "counts": 'root ::= ("a"{0,500}){0,500}',
    "NUL": 'root ::= "\x00"',
    "lone": 'root ::= "\ud800"',
    "deep": "root ::= " + "(" * 600 + '"a"' + ")" * 600,
    "many": "root ::= r0\n" + "\n".join(f'r{n} ::= "a" r{n + 1} | "b"' for n in range(1_500)) + '\nr1500 ::= "c"',
    "class": "root ::= [\\x00-\\U0010FFFF]+",
    "star": 'root ::= (""*)*',
    "nullable": 'root ::= (("a"?)*)*',
    "look": 'root ::= "a" (?= "b")',
}
FORMATS: dict[str, Any] = {
    "a text": "json",
    "a list": [],
    "no type": {},
    "type unknown": {"type": "xml"},
    "type null": {"type": None},
    "json_object": {"type": "json_object"},
    "no schema": {"type": "json_schema"},
    "schema null": {"type": "json_schema", "json_schema": None},
    "schema a text": {"type": "json_schema", "json_schema": "{}"},
    "structural empty": {"type": "structural_tag"},
    "structural odd": {"type": "structural_tag", "structures": [{"begin": "", "schema": {}, "end": ""}], "triggers": [""]},
    "structural new": {"type": "structural_tag", "format": {"type": "const_string", "value": "x"}},
    "structural bad": {"type": "structural_tag", "format": {"type": "?"}},
    "structural many": {
        "type": "structural_tag",
        "structures": [{"begin": f"<{n}>", "schema": {}, "end": "</>"} for n in range(500)],
        "triggers": ["<"],
    },
    "structural no trigger": {"type": "structural_tag", "structures": [{"begin": "<a>", "schema": {}, "end": "</a>"}], "triggers": ["<b>"]},
}
CHOICES: dict[str, Any] = {
    "auto": "auto",
    "required": "required",
    "none": "none",
    "unknown": "sometimes",
    "named": {"type": "function", "function": {"name": "weather"}},
    "nobody": {"type": "function", "function": {"name": "nobody"}},
    "no name": {"type": "function"},
    "a number": 1,
    "a list": ["auto"],
    "empty": {},
}


def tool_schema(random: Random) -> Request:
    """A tool whose parameters are an odd schema, through the APIs that have tools."""
    name, choice = random.choice(list(SCHEMAS)), random.choice(("auto", "auto", "required", "named"))
    function = {**FUNCTION, "parameters": SCHEMAS[name]()}
    kind, stream = f"tool {name}, {choice}", random.random() < 0.5
    if random.random() < 0.15:
        tool = {"name": "weather", "input_schema": SCHEMAS[name]()}
        choices = {"auto": {"type": "auto"}, "required": {"type": "any"}, "named": {"type": "tool", "name": "weather"}}
        body = {"model": MODEL, "messages": SAID, "max_tokens": 3, "tools": [tool], "tool_choice": choices[choice], "stream": stream}
        return json_request(kind, "/v1/messages", body)
    strict = random.choice(({}, {}, {"strict": True}))
    tools = [{"type": "function", "function": {**function, **strict}}]
    return json_request(kind, "/v1/chat/completions", {**CHAT, "tools": tools, "tool_choice": CHOICES[choice], "stream": stream})


def tool_list(random: Random) -> Request:
    """Odd lists of tools and odd choices among them."""
    parts: dict[str, Any] = {
        "a text": "weather",
        "null": None,
        "a number": 1,
        "empty": {},
        "no function": {"type": "function"},
        "type unknown": {"type": "plugin", "function": FUNCTION},
        "name empty": _tool(name=""),
        "name odd": _tool(name='a"}{<|'),
        "name long": _tool(name="n" * 5_000),
        "name a number": _tool(name=5),
        "name lone": _tool(name="\ud800"),
        "description null": _tool(description=None),
        "no parameters": {"type": "function", "function": {"name": "weather"}},
        "good": _tool(),
    }
    names = [random.choice(list(parts)) for _ in range(random.choice((1, 1, 2, 3)))]
    choice, many = random.choice(list(CHOICES)), random.choice((1, 1, 1, 100))
    tools: Any = [parts[name] for name in names] * many
    if random.random() < 0.1:
        tools = random.choice(({}, "weather", [], [[]], 5))
    body = {**CHAT, "tools": tools, "tool_choice": CHOICES[choice], "stream": random.random() < 0.3}
    return json_request(f"tools {'+'.join(names)}, {choice}", "/v1/chat/completions", body)


def _tool(**changes: Any) -> dict[str, Any]:
    return {"type": "function", "function": {**FUNCTION, **changes}}


def constraint(random: Random) -> Request:
    """An odd schema, regular expression, grammar or format as what the answer has to be."""
    what = random.choice(("schema", "schema", "schema", "regex", "ebnf", "format"))
    table: dict[str, Any] = {"schema": SCHEMAS, "regex": EXPRESSIONS, "ebnf": GRAMMARS, "format": FORMATS}[what]
    name = random.choice(list(table))
    value = table[name]() if what == "schema" else table[name]
    path = random.choice(("/v1/chat/completions", "/v1/chat/completions", "/generate", "/v1/completions"))
    return json_request(f"{what} {name}", path, _constrained(path, what, value, random.random() < 0.3))


def _constrained(path: str, what: str, value: Any, stream: bool) -> dict[str, Any]:
    if path == "/generate":
        key, given = (
            {"schema": "json_schema", "format": "structural_tag"}.get(what, what),
            value if what in ("regex", "ebnf") else json.dumps(value),
        )
        return {"text": ASK, "sampling_params": {"max_new_tokens": 3, key: given}, "stream": stream}
    body: dict[str, Any] = {**CHAT, "stream": stream}
    if path == "/v1/completions":
        body = {"model": MODEL, "prompt": ASK, "max_tokens": 3, "stream": stream}
    if what == "schema":
        return {**body, "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": value}}}
    return {**body, {"format": "response_format"}.get(what, what): value}
