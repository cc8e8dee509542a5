"""JSON answers for generated schemas, of an engine with MTP and the operator's defaults: each is valid or cut, and none runs in blanks."""

import json
import re
from collections import Counter
from functools import cache
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from sglang_gemma4.serving.blank_bound import BLANKS
from sglang_gemma4.tiny import checkpoints
from tests.harness.engine_fork import Group, Nursery, Output
from tests.harness.inputs.mtp_cases import MTP, chats
from tests.harness.inputs.tool_schemas import nested, schemas

MODEL = checkpoints.SHIPPED / "tiny-e2b"
FEW, MANY = 30, 1000
ANY = [{"type": "object"}, {"type": "array"}, {}]
MARKED = [
    {"type": "object", "properties": {"a": {"const": "a<tool_call|>b"}}, "required": ["a"]},
    {"enum": ["<|image|> of <eos>", "<|turn>model"]},
]
"""Markers in constants: texts leave special tokens out, so the answer must spell their characters."""
ENDLESS = {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}
_STRING = re.compile(r'"(?:\\.|[^"\\])*"?')


def drawn(count: int) -> list[Any]:
    """The same schemas each time: objects, and any others without references."""
    found: list[Any] = []
    others = nested.filter(lambda schema: "$ref" not in json.dumps(schema))

    health = list(HealthCheck)

    @settings(max_examples=2 * count, derandomize=True, database=None, deadline=None, phases=[Phase.generate], suppress_health_check=health)
    @given(st.one_of(schemas, others))
    def collect(schema: Any) -> None:
        found.append(schema)

    collect()
    return [*ANY, *MARKED, *found][:count]


@cache
def asked(nursery: Nursery, count: int) -> tuple[list[Any], list[Output]]:
    """Schemas and the answers; the last schema is one that cannot end."""
    wanted = [*drawn(count), ENDLESS]
    prompts = chats(20, seed=3)
    sampling = [{"temperature": float(n % 3 > 0), "max_new_tokens": 80, "json_schema": json.dumps(one)} for n, one in enumerate(wanted)]
    group = Group(
        [prompts[n % len(prompts)] for n in range(len(wanted))],
        sampling,
        client="generate:schemas",
        extra={"together": 16},
    )
    options: dict[str, Any] = {"max_running_requests": 16, "max_total_tokens": 4096, "skip_tokenizer_init": False}
    return wanted, nursery.run(MODEL, [group], time_limit=3000, **options, **MTP)[0]


def wrong(schema: Any, answer: Output) -> str | None:
    """What is wrong with an answer."""
    if blanks := re.search(rf"\s{{{BLANKS + 1}}}", _STRING.sub('""', answer.text)):
        return f"blanks at {blanks.start()}"
    if answer.meta_info["finish"] == "length":
        return None
    try:
        jsonschema.Draft202012Validator(schema).validate(json.loads(answer.text))
    except (ValueError, jsonschema.ValidationError) as error:
        return str(error)[:200]
    return None


@pytest.mark.parametrize("count", [FEW, MANY])
def test_answers_are_valid_or_cut_and_never_run_in_blanks(count: int, nursery: Nursery) -> None:
    wanted, answers = asked(nursery, count)
    served = [(schema, answer) for schema, answer in zip(wanted, answers, strict=True) if "refused" not in answer.meta_info]
    finishes = Counter(answer.meta_info["finish"] for _, answer in served)
    print(f"{count} schemas: {count + 1 - len(served)} refused, {finishes['stop']} answers ended, {finishes['length']} were cut")
    assert [(found, schema, answer.text) for schema, answer in served if (found := wrong(schema, answer))] == []
    assert len(served) > 0.8 * count, [answer.meta_info for answer in answers if "refused" in answer.meta_info][:5]
    assert sum(answer.meta_info["finish"] == "stop" for _, answer in served) > 0.3 * count


def test_a_schema_without_an_end_is_refused(nursery: Nursery) -> None:
    answer = asked(nursery, FEW)[1][-1]
    assert "#/properties/a: its values contain another one of it without end" in answer.meta_info["refused"]


def test_the_log_says_the_bound(nursery: Nursery) -> None:
    assert f"at most {BLANKS} blanks in a row" in asked(nursery, FEW)[1][0].log
