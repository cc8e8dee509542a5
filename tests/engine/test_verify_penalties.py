"""Answers under penalties and ``min_new_tokens``: MTP gives plain decoding's, whoever joins, leaves or is retracted, in every loop.

Plain decoding serves them in a pool large enough for all and retracts nobody: stock's penalties forget the answer at a retraction.
"""

import re
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.harness.engine_fork import Group, Nursery, Output
from tests.harness.inputs import mtp_cases
from tests.harness.inputs.mtp_cases import MODEL, MTP, chats, greedy, steps, timed
from tests.harness.oracles.reference import CHECKPOINTS, text_prompts

ENGINE: dict[str, Any] = {"max_total_tokens": 3000, "chunked_prefill_size": 64, "max_running_requests": 8}
Answers = list[list[Output]]


@dataclass
class Mode:
    """A way to serve them under MTP."""

    loop: str
    engine: dict[str, Any] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)


OVERLAP = {"disable_overlap_schedule": False}
MODES = {
    "synchronous": Mode("retracting"),
    "overlapped": Mode("overlapped", OVERLAP),
    "overlapped-chain": Mode("overlapped", OVERLAP, {"SGLANG_GEMMA4_FROZEN_CHAIN": "1"}),
    "v1": Mode("retracting", {}, {"SGLANG_FROZEN_KV_MTP_V2": "0"}),
}


def groups() -> list[Group]:
    """All kinds of penalties from the first step on; then requests with and without, coming and going."""
    asked = mtp_cases.groups()
    stories = text_prompts(MODEL, [21, 33, 18, 40, 24])
    sampling = [
        greedy(60),
        greedy(40, frequency_penalty=0.8),
        greedy(30, repetition_penalty=1.4, frequency_penalty=-0.2),
        greedy(40, presence_penalty=1.2),
        greedy(20),
        greedy(40, min_new_tokens=14, ignore_eos=False),
        greedy(40, min_new_tokens=20, ignore_eos=False, frequency_penalty=0.3, presence_penalty=0.3, repetition_penalty=1.1),
    ]
    plans: list[dict[str, Any]] = [
        {"rid": "mix-free"},
        {"rid": "mix-frequency", "top_logprobs": 2},
        {"rid": "mix-repetition", "after": ["mix-free", 6]},
        {"rid": "mix-presence", "after": ["mix-repetition", 9]},
        {"rid": "mix-short", "after": ["mix-presence", 5]},
        {"rid": "mix-least", "after": ["mix-repetition", -1]},
        {"rid": "mix-all", "after": ["mix-short", -1], "top_logprobs": 2},
    ]
    return [asked["penalised"], asked["at_least"], timed([*stories, *chats(2, 8)], sampling, plans)]


def serve(nursery: Nursery, mode: Mode, **engine: Any) -> Answers:
    env = {"TEST_INSTRUMENTS": f"loop_modes:{mode.loop}", **mode.env}
    return nursery.run(CHECKPOINTS / MODEL, groups(), env=env, time_limit=400, **{**ENGINE, **mode.engine, **engine})


@pytest.fixture(scope="module")
def plain(nursery: Nursery) -> Answers:
    return nursery.run(CHECKPOINTS / MODEL, groups(), env={"TEST_INSTRUMENTS": "mtp_trace:watch"}, time_limit=400, **ENGINE)


def tokens(answers: Answers) -> list[list[list[int]]]:
    return [[output.token_ids for output in group] for group in answers]


def equal(found: Answers, expected: Answers) -> bool:
    """Tokens, and the log-probabilities of requests that ask for them: what a penalty did to the tokens that were not chosen."""
    if tokens(found) != tokens(expected):
        return False
    pairs = zip(found[2], expected[2], strict=True)
    return all(answer.logprobs == pytest.approx(other.logprobs, abs=1e-4) for answer, other in pairs)


def penalties_bite(answers: Answers) -> None:
    """Without them the second group's answers end sooner, and the first's, one of which is free, would be the same for one prompt."""
    penalised, at_least, _ = answers
    assert penalised[0].token_ids != penalised[4].token_ids
    assert len(at_least[2].token_ids) < 14 <= len(at_least[0].token_ids) < 40


@pytest.mark.parametrize("name", list(MODES))
def test_answers_are_those_of_plain_decoding(name: str, nursery: Nursery, plain: Answers) -> None:
    penalties_bite(plain)
    found = serve(nursery, MODES[name], **MTP)
    assert tokens(found) == tokens(plain)
    assert equal(found, plain)
    log = found[0][0].log
    assert sum(output.meta_info["num_retractions"] for group in found for output in group) >= 3
    assert any(max(step.accepted) for step in steps(log, "penalty-")), "drafts are accepted"
    mixed = [step for step in steps(log, "mix-") if "mix-free" in step.rids and len(step.rids) > 1]
    assert any(step.accepted[step.rids.index("mix-free")] for step in mixed)
    assert ("disable_overlap_schedule': False" in log) == ("disable_overlap_schedule" in MODES[name].engine)


def test_a_verify_that_counts_otherwise_is_seen(nursery: Nursery, plain: Answers) -> None:
    """How stock counts is seen by ``crash_repro/verify_penalties.py``."""
    assert not equal(serve(nursery, Mode("overlapped_forgetful", OVERLAP), **MTP), plain)


def test_trees_are_left_as_in_stock(nursery: Nursery) -> None:
    tree = {**MTP, "speculative_eagle_topk": 2, "speculative_num_draft_tokens": 5}
    [[answer, _]] = nursery.run(CHECKPOINTS / MODEL, [Group(chats(2, 8), [greedy(6), greedy(6, presence_penalty=0.5)])], **ENGINE, **tree)
    assert len(re.findall("--speculative-eagle-topk 2: drafts are trees; penalties", answer.log)) == 1
