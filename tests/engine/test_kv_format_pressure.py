"""An int8 KV cache under MTP in a pool that is always full: slots are taken again, requests retracted in the midst of a grammar, prefixes
found in the radix tree; answers are those of a pool with room for all, valid, numbers throughout, and no more of them go in circles."""

import json
import math
from typing import Any

from sglang_gemma4.tiny import checkpoints
from tests.engine.test_kv_format_engines import FLOAT, prompts, tokens
from tests.harness.engine_fork import Group, Nursery, Output
from tests.harness.inputs.drafting import with_assistant
from tests.harness.inputs.mtp_cases import NO_END

MODEL = checkpoints.SHIPPED / "tiny-26b-a4b"
KIND = "int8_per_token_head"
ROUNDS, FREE = 2, 4
FULL = {"max_total_tokens": 400, "schedule_conservativeness": 0.01, "chunked_prefill_size": 64}
ROOM = {"max_total_tokens": 8000, "swa_full_tokens_ratio": 0.9}
TOWNS, RULERS, DAYS = ["Arvo", "Belm", "Corin", "Dask"], ["Adela", "Bruno"], ["sunny", "rainy", "windy", "cold"]
SCHEMA = {
    "type": "object",
    "properties": {
        "town": {"enum": TOWNS},
        "days": {"type": "array", "items": {"enum": DAYS}, "minItems": 3, "maxItems": 4},
        "ruler": {"enum": RULERS},
    },
    "required": ["town", "days", "ruler"],
    "additionalProperties": False,
}


def requests() -> Group:
    """Most are constrained; none ends before it has taken many slots."""
    asked = prompts()[:12]
    constrained = {"max_new_tokens": 150, "ignore_eos": False, "json_schema": json.dumps(SCHEMA)}
    free = {"max_new_tokens": 60, "ignore_eos": False, "logit_bias": NO_END}
    return Group(asked, [free if number % FREE == 0 else constrained for number in range(len(asked))], logprobs=True)


def constrained(answers: list[Output]) -> list[Output]:
    return [one for number, one in enumerate(answers) if number % FREE]


def serve(nursery: Nursery, kind: str, rounds: int, engine: dict[str, Any]) -> list[list[Output]]:
    options = {**with_assistant(MODEL), "constrained_json_disable_any_whitespace": True, **engine}
    return nursery.run(MODEL, [requests()] * rounds, kv_cache_dtype=kind, time_limit=500, **options)


def in_circles(ids: list[int]) -> bool:
    """Whether an answer ends in the same few tokens again and again."""
    return any(len(ids) >= 6 * period and ids[-5 * period :] == ids[-6 * period : -period] for period in range(1, 9))


def assert_of_schema(text: str) -> None:
    said = json.loads(text)
    assert list(said) == list(SCHEMA["properties"])  # type: ignore[call-overload]
    assert said["town"] in TOWNS
    assert 3 <= len(said["days"]) <= 4
    assert set(said["days"]) <= set(DAYS)
    assert said["ruler"] in RULERS


def test_answers_of_a_full_pool_are_those_of_one_with_room(nursery: Nursery) -> None:
    rounds, (room,), (before,) = serve(nursery, KIND, ROUNDS, FULL), serve(nursery, KIND, 1, ROOM), serve(nursery, FLOAT, 1, ROOM)
    print("retractions:", [[one.meta_info["num_retractions"] for one in answers] for answers in rounds])
    for number, answers in enumerate(rounds):
        assert tokens(answers) == tokens(room)
        assert any(one.meta_info["num_retractions"] for one in constrained(answers)), "in the midst of a grammar"
        assert any(one.meta_info["cached_tokens"] for one in answers) or number == 0
    for answer in [one for answers in (*rounds, room) for one in answers]:
        assert len(answer.logprobs) == len(answer.token_ids)
        assert all(map(math.isfinite, answer.logprobs))
    for answer in [one for answers in rounds for one in constrained(answers)]:
        assert answer.meta_info["finish_reason"]["type"] == "stop"
        assert_of_schema(answer.text)
    assert sum(one.meta_info["spec_num_correct_drafts"] for one in rounds[0]) > 60
    circles = [sum(in_circles(one.token_ids) for one in answers) for answers in (rounds[0], before)]
    print("in circles:", circles)

    assert circles[0] <= circles[1]
