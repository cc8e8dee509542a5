"""Prompts prefilled in one forward with decode or verify rows: tokens are those without, and the forwards really were joined.

The requests are those of ``test_mtp_lifecycle``, with SGLang's pool checks fatal in every step and when idle.
"""

import json
import re
from dataclasses import dataclass
from typing import Any

import pytest

from tests.engine import mtp_cases
from tests.engine.engine_fork import Group, Nursery, Output
from tests.engine.mtp_cases import MTP, greedy, named, timed
from tests.engine.reference import CHECKPOINTS, text_prompts

SWITCH = "SGLANG_GEMMA4_PREFILL_BESIDE_VERIFY"
ENGINE = {**mtp_cases.ENGINE, "enable_mixed_chunk": False}
Answers = dict[str, list[Output]]


@dataclass
class Joined:
    """One forward of two batches."""

    prefilled: list[str]
    running: list[str]
    rows: list[int]


def joined(log: str) -> list[Joined]:
    return [Joined(**json.loads(line)) for line in re.findall(r"BESIDE (\{.*\})", log)]


def serve(nursery: Nursery, groups: dict[str, Group], switch: str, sabotage: str, model: str = mtp_cases.MODEL, **engine: Any) -> Answers:
    env = {"TEST_SABOTAGE": f"beside_trace:{sabotage}", SWITCH: switch}
    found = nursery.run(CHECKPOINTS / model, list(groups.values()), env=env, time_limit=400.0, **{**ENGINE, **engine})
    return dict(zip(groups, found, strict=True))


def drafts(answers: list[Output]) -> list[Any]:
    return [output.meta_info.get("spec_num_correct_drafts") for output in answers]


@pytest.fixture(scope="module")
def apart(nursery: Nursery) -> Answers:
    """Plain decoding, prefill and decode in turn."""
    found = serve(nursery, mtp_cases.groups(), "0", "watch")
    assert not joined(found["together"][0].log)
    return found


LOOPS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("watch", {}),
    "plain-overlapped": ("overlapped", {"disable_overlap_schedule": False}),
    "mtp": ("watch", MTP),
    "mtp-overlapped": ("overlapped", {**MTP, "disable_overlap_schedule": False}),
}


@pytest.fixture(scope="module", params=list(LOOPS))
def beside(request: pytest.FixtureRequest, nursery: Nursery) -> Answers:
    sabotage, engine = LOOPS[request.param]
    return serve(nursery, mtp_cases.groups(), "1", sabotage, **engine)


EXACT = [name for name in mtp_cases.groups() if name not in ("aborted", "unaborted")]


def test_tokens_are_those_of_steps_in_turn(beside: Answers, apart: Answers) -> None:
    for name in EXACT:
        found, expected = ([(output.token_ids, output.text) for output in answers[name]] for answers in (beside, apart))
        assert found == expected, name


def test_chunks_of_a_prompt_go_beside_running_requests(beside: Answers) -> None:
    together = joined(beside["chunked"][0].log)
    chunks = [step for step in together if "chunk-1" in step.running and {"chunk-2", "chunk-3"} & set(step.prefilled)]
    assert len(chunks) >= 4, "prompts of 201 and 90 tokens in chunks of 64"
    assert all(step.rows[0] <= 64 and step.rows[1] % len(step.running) == 0 for step in together)


def test_requests_end_and_are_aborted_beside_a_prefill(beside: Answers, apart: Answers) -> None:
    for stays in (0, 2, 4):
        assert beside["aborted"][stays].token_ids == apart["aborted"][stays].token_ids
    whole, cut = apart["unaborted"][0].token_ids, beside["aborted"][1].token_ids
    assert len(cut) >= 9
    assert cut == whole[: len(cut)]
    log = beside["aborted"][0].log
    assert re.search(r"MIDCHUNK midchunk-5 prefilled [1-9]", log)
    assert any("midchunk-5" in step.prefilled for step in joined(log))
    assert any("life-f" in step.prefilled for step in joined(log)), "ends at its prefill"


def test_logprobs_are_those_of_steps_in_turn(beside: Answers, apart: Answers) -> None:
    for found, expected in zip(beside["logprobs"], apart["logprobs"], strict=True):
        assert found.logprobs == pytest.approx(expected.logprobs, abs=1e-4)
