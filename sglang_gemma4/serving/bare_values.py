"""JSON of values that Gemma 4's call syntax writes without delimiters."""

import json
import re

from sglang_gemma4.serving.arguments_json import escaped
from sglang_gemma4.serving.schema_types import Schemas, types

_JSON_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_OTHER_NUMBER = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?([eE][+-]?[0-9]+)?")


def bare(text: str, schemas: Schemas) -> str:
    """JSON of a value without delimiters: true, false, null, a number, or else a string.

    It is a string if the schema allows strings but not the type that is written: a zip code 02139 keeps its zero.
    """
    text = text.strip()
    allowed = types(schemas)
    any_string = allowed is not None and "string" in allowed
    if text in ("null", "None"):  # the released template prints None
        return "null"
    if text in ("true", "false", "True", "False"):
        return json.dumps(text) if any_string and allowed and "boolean" not in allowed else text.lower()
    numeric = allowed is None or "number" in allowed or "integer" in allowed or not any_string
    if numeric and _JSON_NUMBER.fullmatch(text):
        return text
    if numeric and (number := _OTHER_NUMBER.fullmatch(text)) and (number[2] or number[3]):
        leading_zeros = len(number[2]) > 1 and number[2].startswith("0")
        if not (leading_zeros and allowed is None):
            sign = number[1].replace("+", "")
            fraction = "" if number[3] is None else f".{number[3] or 0}"
            return f"{sign}{number[2].lstrip('0') or 0}{fraction}{number[4] or ''}"
    return f'"{escaped(text)}"'


def ended_by_delimiter(text: str, schemas: Schemas) -> str:
    """JSON of a value whose first delimiter is missing: a string, unless the schema allows none."""
    allowed = types(schemas)
    if allowed is None or "string" in allowed:
        return f'"{escaped(text.strip())}"'
    return bare(text, schemas)
