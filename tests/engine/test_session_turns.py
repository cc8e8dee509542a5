"""SGLang's sessions (``/open_session``): each turn's tokens are those of one request that holds all that was said before it."""

import json
from typing import Any

import pytest

from tests.harness.engine_fork import Group, Nursery, Output
from tests.harness.inputs.drafting import MTP
from tests.harness.oracles.reference import CHECKPOINTS, text_prompts

LENGTHS = [20, 45, 90, 33, 60, 40, 25]
"""Of first prompts: below a window and above it."""
FREQUENT = [287, 280, 564]
"""Tokens that the tiny models say often."""
ENDS: list[dict[str, Any]] = [
    {"max_new_tokens": 9},
    {"max_new_tokens": 50, "meanwhile": 2},
    {"max_new_tokens": 40, "stop_token_ids": FREQUENT, "ignore_eos": False},
    {"max_new_tokens": 40, "stop": ["e", "a"], "ignore_eos": False},
    {"max_new_tokens": 24, "min_new_tokens": 13, "stop_token_ids": FREQUENT, "ignore_eos": False},
    {"max_new_tokens": 40, "regex": r"[a-z]{3,7} is [a-z]{2,5}\.", "ignore_eos": False},
    {"max_new_tokens": 60, "abort_at": 6},
]
"""A way to end for each session; turn by turn they go round."""
KINDS: dict[str, tuple[dict[str, str], dict[str, Any]]] = {
    "synchronous": ({}, MTP),
    "overlapped": ({"TEST_INSTRUMENTS": "loop_modes:overlapping"}, {**MTP, "disable_overlap_schedule": False}),
    "v1": ({"SGLANG_FROZEN_KV_MTP_V2": "0"}, MTP),
    "adaptive": ({}, {**MTP, "speculative_adaptive": True}),
    "retracting": ({"TEST_INSTRUMENTS": "loop_modes:retracting"}, MTP),
    "pages": ({}, {**MTP, "page_size": 16}),
    "chunks": ({}, {**MTP, "chunked_prefill_size": 32}),
    "plain": ({}, {}),
    "plain-overlapped": ({"TEST_INSTRUMENTS": "loop_modes:overlapping"}, {"disable_overlap_schedule": False}),
}


def talk(family: str, streaming: bool) -> Group:
    """Seven sessions of four turns."""
    sampling = [[ENDS[(number + turn) % len(ENDS)] for number in range(len(LENGTHS))] for turn in range(4)]
    if not streaming:
        sampling = [[{name: value for name, value in one.items() if name != "meanwhile"} for one in turn] for turn in sampling]
    lengths = [[3 + 5 * turn + number * (1 + number % 3) for number in range(len(LENGTHS))] for turn in range(1, 4)]
    turns = [{"say": [ids[1:] for ids in text_prompts(family, each)], "sampling": sampling[turn]} for turn, each in enumerate(lengths, 1)]
    return Group(
        text_prompts(family, LENGTHS), sampling[0], client="session_client:converse", extra={"turns": turns, "streaming": streaming}
    )


def converse(nursery: Nursery, family: str, group: Group, env: dict[str, str], **engine: Any) -> list[Output]:
    """What an engine with sessions answers; its assistant drafts where ``engine`` says how."""
    if "speculative_algorithm" in engine:
        engine["speculative_draft_model_path"] = CHECKPOINTS / f"{family}-assistant"
    return nursery.run(CHECKPOINTS / family, [group], env, enable_streaming_session=group.extra["streaming"], **engine)[0]


_wholes: dict[str, list[Output]] = {}
"""Answers by family, prompts and sampling: every loop asks the same."""


def one_request_each(nursery: Nursery, family: str, asked: list[list[int]], sampling: list[dict[str, Any]]) -> list[Output]:
    """Without sessions and without MTP."""
    key = json.dumps([family, asked, sampling])
    if key not in _wholes:
        [_wholes[key]] = nursery.run(CHECKPOINTS / family, [Group(asked, sampling)], max_total_tokens=8192)
    return _wholes[key]


def assert_as_one_request(nursery: Nursery, family: str, group: Group, found: list[Output]) -> None:
    """``found`` is what an engine without sessions and without MTP says to each turn's whole text."""
    asked = [answer.meta_info["asked"] for answer in found]
    turns = [group.sampling, *(turn["sampling"] for turn in group.extra["turns"])]
    plain = [{name: value for name, value in one.items() if name not in ("abort_at", "meanwhile")} for turn in turns for one in turn]
    wholes = one_request_each(nursery, family, asked, plain)
    for number, (answer, whole) in enumerate(zip(found, wholes, strict=True)):
        aborted = answer.meta_info["finish_reason"]["type"] == "abort"
        due = whole.token_ids[: len(answer.token_ids)] if aborted else whole.token_ids
        assert answer.token_ids == due, f"turn {number // len(group.prompts)} of session {number % len(group.prompts)}"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", ["tiny-e2b", "tiny-26b-a4b"])
def test_a_turn_is_that_of_one_request(nursery: Nursery, family: str, kind: str) -> None:
    env, engine = KINDS[kind]
    group = talk(family, streaming=True)
    found = converse(nursery, family, group, env, **engine)
    assert_as_one_request(nursery, family, group, found)
    cached = [answer.meta_info["cached_tokens"] for answer in found[len(LENGTHS) :]]
    assert sum(count > 0 for count in cached) > len(cached) / 3, "a turn goes on from its session's KV"
    assert kind != "retracting" or sum(answer.meta_info["num_retractions"] for answer in found) > 0


def test_sessions_give_memory_to_others(nursery: Nursery) -> None:
    """Idle ones before anybody is retracted, retracted ones what they have; nobody waits for ever."""
    group = talk("tiny-e2b", streaming=True)
    found = converse(nursery, "tiny-e2b", group, {}, **MTP, max_total_tokens=400, schedule_conservativeness=0.01)
    assert "gives its KV to others" in found[0].log
    assert_as_one_request(nursery, "tiny-e2b", group, found)


@pytest.mark.parametrize("family", ["tiny-e2b", "tiny-26b-a4b"])
def test_other_sessions_branch(nursery: Nursery, family: str) -> None:
    """Not streaming: a turn may drop, cut or replace what was said before it."""
    group = talk(family, streaming=False)
    for turn, params in zip(group.extra["turns"], ({"drop_previous_output": True}, {"offset": 17}, {"replace": True}), strict=True):
        turn["params"] = params
    found = converse(nursery, family, group, {}, **MTP)
    assert_as_one_request(nursery, family, group, found)
