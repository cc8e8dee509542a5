"""Odd JSON: a good body with an odd value somewhere, odd fields beside the good ones, and texts that hardly are JSON."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from random import Random
from typing import Any

from tests.hostile.bases import BASES, GENERATING, base
from tests.hostile.exchange import Request, json_request

NAN = float("nan")
INFINITE = float("inf")
NUMBERS: dict[str, Any] = {
    "-1": -1,
    "0": 0,
    "-0.0": -0.0,
    "1": 1,
    "0.5": 0.5,
    "2^31-1": 2**31 - 1,
    "2^31": 2**31,
    "-2^31-1": -(2**31) - 1,
    "2^63-1": 2**63 - 1,
    "2^63": 2**63,
    "-2^63-1": -(2**63) - 1,
    "2^64": 2**64,
    "10^30": 10**30,
    "-10^30": -(10**30),
    "1e308": 1e308,
    "-1e308": -1e308,
    "1e-320": 1e-320,
    "nan": NAN,
    "inf": INFINITE,
    "-inf": -INFINITE,
    "10^6": 10**6,
}
TEXTS: dict[str, Any] = {
    "empty text": "",
    "'1'": "1",
    "'nan'": "nan",
    "NUL": "a\x00b",
    "lone surrogate": "a\ud800b",
    "two lone": "\udc00\ud800",
    "emoji": "👩‍👩‍👧‍👦" * 20,
    "right to left": "\u202eabc\u2066",
    "long text": "x" * 3000,
    "long mixed": "é😀 \n" * 2000,
    "template": "{{ 1/0 }}{% for %}",
    "markers": "<|tool_call>call:x{<|turn>model<|channel>thought<turn|><|image><image|><|audio>",
    "path": "/etc/passwd",
}
IDS: dict[str, Any] = {
    "[5000]": [5000],
    "[-1]": [-1],
    "[2^31]": [2**31],
    "[2^63]": [2**63],
    "[0.5]": [0.5],
    "['1']": ["1"],
    "[true]": [True],
    "[[1]]": [[1]],
    "[1024]": [1024],
    "[262144]": [262144],
    "image ids": [5, 4, 4, 6],
    "audio ids": [8, 7, 9],
    "many ids": [300] * 4000,
    "too many": [300] * 9000,
    "[[]]": [[]],
    "ragged": [[300], 301],
    "[null]": [None],
    "[nan]": [NAN],
    "{'5000':5}": {"5000": 5.0},
    "{'-1':1}": {"-1": 1.0},
    "{'x':1}": {"x": 1.0},
    "{'300':1e309}": {"300": INFINITE},
    "{'300':nan}": {"300": NAN},
    "[-1,5000]": [[-1, 5000]],
}


def _deep(depth: int) -> Any:
    value: Any = 1
    for level in range(depth):
        value = [value] if level % 2 else {"a": value}
    return value


SHAPES: dict[str, Any] = {
    "null": None,
    "true": True,
    "false": False,
    "[]": [],
    "{}": {},
    "[{}]": [{}],
    "{'':{}}": {"": {}},
    "mixed": [1, "a", None, {}],
    "deep 60": _deep(60),
    "deep 400": _deep(400),
    "many numbers": list(range(3000)),
    "many keys": {f"k{n}": n for n in range(1500)},
    "many texts": ["ab"] * 2000,
    "dict in list": [{"a": [{"b": {}}]}],
    "embeddings": [[0.5] * 128] * 3,
    "wrong embeddings": [[0.5] * 7, [1.0]],
}
VALUES: dict[str, Any] = {**NUMBERS, **TEXTS, **IDS, **SHAPES}

SAMPLING = (
    *("max_new_tokens", "stop", "stop_token_ids", "stop_regex", "temperature", "top_p", "top_k", "min_p", "frequency_penalty"),
    *("presence_penalty", "repetition_penalty", "min_new_tokens", "n", "json_schema", "regex", "ebnf", "structural_tag", "ignore_eos"),
    *(
        "skip_special_tokens",
        "spaces_between_special_tokens",
        "no_stop_trim",
        "custom_params",
        "stream_interval",
        "logit_bias",
        "sampling_seed",
    ),
)
OPTIONS = ("num_predict", "temperature", "top_k", "top_p", "stop", "seed", "repeat_penalty", "presence_penalty", "num_ctx")
TEMPLATE = (
    "messages",
    "tools",
    "add_generation_prompt",
    "tokenize",
    "chat_template",
    "conversation",
    "documents",
    "return_dict",
    "self",
    "padding",
)
NESTED = {"/generate": ("sampling_params", SAMPLING), "/api/chat": ("options", OPTIONS), "/api/generate": ("options", OPTIONS)}
DEEDS = {"background"}
"""Fields of requests that run on unseen are left out: nobody could say what came of them."""


def odd_field(random: Random, fields: Mapping[str, tuple[str, ...]]) -> Request:
    """One field, known to the endpoint or not, has an odd value.

    Args:
        random: decides all.
        fields: names of the endpoint's fields by its path.
    """
    path = _path(random, 0.8)
    body = base(path, random.randrange(8))
    name, value, holder = random.choice(fields.get(path) or ("model",)), _value(random), body
    if path in NESTED or "chat_template_kwargs" in fields.get(path, ()):
        group, inner = NESTED.get(path, ("chat_template_kwargs", TEMPLATE))
        if random.random() < 0.4:
            name, holder = random.choice(inner), _inner(body, group)
    holder["surprise" if name in DEEDS else name] = VALUES[value]
    return json_request(f"field {name}={value}", path, body)


def _inner(body: dict[str, Any], group: str) -> dict[str, Any]:
    """The object under ``group``, or the first of several."""
    found = body.setdefault(group, {})
    return found[0] if isinstance(found, list) else found  # type: ignore[no-any-return]


def odd_place(random: Random, fields: Mapping[str, tuple[str, ...]]) -> Request:
    """Somewhere in a good body a value is replaced, taken away, put into a list, or given twice."""
    path = _path(random, 0.7)
    body = base(path, random.randrange(8))
    places = list(_places(body))
    what = ""
    for _ in range(1 if random.random() < 0.8 else 2):
        holder, key, name = random.choice(places)
        what = _change(random, holder, key, name)
    return json_request(f"place {what}", path, body)


def _change(random: Random, holder: Any, key: Any, name: str) -> str:
    how, value = random.choice(("replace", "replace", "replace", "take away", "wrap", "repeat")), _value(random)
    try:
        if how == "replace":
            holder[key] = VALUES[value]
            return f"{name}={value}"
        if how == "take away":
            del holder[key]
        elif how == "wrap":
            holder[key] = [holder[key]]
        else:
            holder[key] = [holder[key]] * 40
    except (IndexError, KeyError, TypeError):
        pass  # an earlier change took the place away
    return f"{name} {how}"


def _places(value: Any, name: str = "") -> Any:
    """Each place below ``value``: what holds it, its key there, and its name."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        here = f"{name}.{key}" if isinstance(key, str) else f"{name}[]"
        yield value, key, here.lstrip(".")
        yield from _places(inner, here)


def odd_text(random: Random, fields: Mapping[str, tuple[str, ...]]) -> Request:
    """A body that is odd as a text: no JSON, two of them, repeated keys, other encodings, nesting of 100,000."""
    path = _path(random, 0.7)
    text = json.dumps(base(path, random.randrange(8))).encode()
    name = random.choice(list(TEXT_CHANGES))
    return Request(f"text {name}", path, TEXT_CHANGES[name](text))


TEXT_CHANGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda text: b"",
    "cut": lambda text: text[: len(text) // 2],
    "twice": lambda text: text + text,
    "comma at the end": lambda text: text[:-1] + b",}",
    "byte order mark": lambda text: b"\xef\xbb\xbf" + text,
    "UTF-16": lambda text: text.decode().encode("utf-16"),
    "no UTF-8": lambda text: text.replace(b"Belm", b"B\xff\xfe\x80m"),
    "half a character": lambda text: text.replace(b"Belm", b"B\xe2\x82"),
    "raw control characters": lambda text: text.replace(b"Belm", b"B\x00\x01\nm"),
    "bad escape": lambda text: text.replace(b"Belm", rb"B\x41\u12"),
    "escaped lone surrogate": lambda text: text.replace(b"Belm", rb"B\ud800m"),
    "keys twice": lambda text: b'{"model": 5, ' + text[1:-1] + b', "model": "tiny-26b-a4b", "max_tokens": 2, "temperature": 0}',
    "spaces": lambda text: b" " * 100_000 + text,
    "comment": lambda text: b"/* */" + text,
    "an array": lambda text: b"[" + text + b"]",
    "a number": lambda text: b"42",
    "null": lambda text: b"null",
    "a text": lambda text: b'"hello"',
    "only brackets": lambda text: b"[" * 100_000,
    "nested 1,000": lambda text: text[:-1] + b', "x": ' + b"[" * 1_000 + b"]" * 1_000 + b"}",
    "nested 100,000": lambda text: text[:-1] + b', "x": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"}",
    "number of 5,000 digits": lambda text: text[:-1] + b', "seed": ' + b"9" * 5_000 + b"}",
    "1e999": lambda text: text[:-1] + b', "temperature": 1e999}',
    "-1e999": lambda text: text[:-1] + b', "presence_penalty": -1e999}',
    "1e-999": lambda text: text[:-1] + b', "temperature": 1e-999, "top_p": 1e-999}',
    "bytes": lambda text: bytes(range(256)) * 4,
    "a form": lambda text: b"model=x&prompt=y",
    "unknown fields": lambda text: text[:-1] + b"".join(b', "u%d": {"a": [1, 2]}' % n for n in range(1_000)) + b"}",
}


def _path(random: Random, generating: float) -> str:
    return random.choice(GENERATING) if random.random() < generating else random.choice(list(BASES))


def _value(random: Random) -> str:
    return random.choice(list(random.choice((NUMBERS, NUMBERS, TEXTS, IDS, SHAPES))))


def changed(random: Random, request: Request) -> Request:
    """A case of schemathesis's, or, four times in ten, the same with an odd value somewhere."""
    if random.random() > 0.4:
        return request
    try:
        body = json.loads(request.body)
    except ValueError:
        return request
    places = list(_places(body))
    if not places:
        return request
    what = _change(random, *random.choice(places))
    return replace(request, kind=f"{request.kind}, {what}", body=json.dumps(body).encode())
