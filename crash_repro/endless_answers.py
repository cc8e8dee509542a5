"""JSON answers go on until max_tokens, in blanks and by schemas that no answer can complete, or lose markers. Needs no GPU."""

import json
import re
import sys
from typing import Any

import case  # type: ignore[import-not-found]
import engines  # type: ignore[import-not-found]
import shipped  # type: ignore[import-not-found]

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TAG = {"type": "structural_tag", "format": {"type": "json_schema", "json_schema": SCHEMA}}
GRAMMARS: dict[str, dict[str, str]] = {
    "a JSON schema": {"json_schema": json.dumps(SCHEMA)},
    "any JSON": {"json_schema": "$$ANY$$"},
    "a structural tag": {"structural_tag": json.dumps(TAG)},
}
ENDLESS: dict[str, Any] = {
    "an object that requires itself": {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
    "arrays without an empty one": {"type": "array", "items": {"$ref": "#"}, "minItems": 1},
    "a list without a last": {"anyOf": [{"$ref": "#/$defs/node"}], "$defs": {"node": {**SCHEMA, "properties": {"a": {"$ref": "#"}}}}},
}
BLANKS, MANY = 16, 100
MARKER, MARKED = "<tool_call|>", "a constant with a marker"
CONSTANT = {"type": "object", "properties": {"a": {"const": f"x{MARKER}y"}}, "required": ["a"]}


def main() -> int:
    """The answers of a model that likes line breaks and markers: how many breaks come in a row, and whether the schemas are served."""
    seen = engines.ask(shipped.target(), "endless_answers:answers", skip_tokenizer_init=False)
    print(seen)
    expected = {**dict.fromkeys(GRAMMARS, True), **dict.fromkeys(ENDLESS, "refused"), MARKED: True}
    return int(case.verdict(expected, {**seen, **{name: seen[name] <= BLANKS for name in GRAMMARS}} if isinstance(seen, dict) else seen))


def answers(engine: Any, _extra: None) -> dict[str, Any]:
    """The client: blanks in a row of each answer, what becomes of the schemas, and whether an answer has the marker of its constant."""
    line = engine.tokenizer_manager.tokenizer.encode("\n", add_special_tokens=False)[-1]
    found: dict[str, Any] = {}
    for name, grammar in GRAMMARS.items():
        text = ask(engine, {**grammar, "logit_bias": {str(line): 60.0}})
        found[name] = max(map(len, re.findall(r"\s+", text)), default=0)
    for name, schema in ENDLESS.items():
        found[name] = "refused" if "without end" in ask(engine, {"json_schema": json.dumps(schema)}) else "answered"
    marker = engine.tokenizer_manager.tokenizer.convert_tokens_to_ids(MARKER)
    found[MARKED] = MARKER in ask(engine, {"json_schema": json.dumps(CONSTANT), "logit_bias": {str(marker): 60.0}})
    return found


def ask(engine: Any, parameters: dict[str, Any]) -> str:
    """An answer's text, or the error."""
    try:
        sampling = {"max_new_tokens": MANY, "temperature": 0, **parameters}
        return str(engine.generate("Who is the ruler?", sampling)["text"])
    except ValueError as error:
        return str(error)


if __name__ == "__main__":
    sys.exit(main())
