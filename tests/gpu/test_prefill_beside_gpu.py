"""Prefill beside verify on a card: requests that come while others are decoded, in bfloat16 with CUDA graphs, with and without it.

What cannot be seen without a card: that no joined forward fails there (a failure would be said and left to SGLang), that the graphs of
draft and verify work between joined steps, and that nothing in a joined forward waits for the device.
"""

import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from sglang_gemma4.patching import switches
from sglang_gemma4.speculative import step_clock
from sglang_gemma4.tiny import checkpoints
from tests.engine.test_oracle import Case
from tests.gpu.test_gpu import run_case
from tests.harness.engine_fork import Group
from tests.harness.inputs.drafting import MTP
from tests.harness.inputs.mtp_cases import greedy, timed

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

SWITCH = "SGLANG_GEMMA4_PREFILL_BESIDE_VERIFY"
FAMILIES = ("tiny-26b-a4b", "tiny-e2b")
LENGTHS = (60, 40, 400, 30, 1500)
NEW_TOKENS = (400, 200, 40, 40, 40)
ALIKE = 0.9
"""Least part of tokens that are equal up to the first difference: rows beside others may round differently in bfloat16."""


class Coming(Case):
    """Two requests run; three prompts come one after the other, the last in chunks."""

    def __init__(self, family: str) -> None:
        super().__init__(checkpoints.SHIPPED / family, [], [])

    def groups(self) -> list[Group]:
        prompts = [[2] + [(11 * i + 37 * n + 3 * n * i) % 700 + 300 for i in range(length - 1)] for n, length in enumerate(LENGTHS)]
        asked: list[dict[str, Any]] = [
            {"rid": "long-0"},
            {"rid": "long-1"},
            *({"rid": f"late-{number}", "after": ["long-0", 20 * (number + 1)]} for number in range(3)),
        ]
        return [timed(prompts, [greedy(tokens) for tokens in NEW_TOKENS], asked)]


def arms() -> dict[str, tuple[str, str, dict[str, Any]]]:
    """By name: family, value of the switch, engine's arguments."""
    found: dict[str, tuple[str, str, dict[str, Any]]] = {}
    for family in FAMILIES:
        draft = {**MTP, "speculative_draft_model_path": f"{checkpoints.SHIPPED / family}-assistant"}
        for on in "01":
            found[f"{family} mtp {on}"] = (family, on, draft)
            found[f"{family} plain {on}"] = (family, on, {})
            found[f"{family} unified {on}"] = (family, on, {**draft, "enable_unified_memory": True})
    return found


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[list[dict[str, Any]], str]]:
    """By arm: the answers and the engine's log; four engines at a time."""
    base = tmp_path_factory.mktemp("beside")

    def one(name: str) -> tuple[list[dict[str, Any]], str]:
        family, on, engine = arms()[name]
        folder = base / name.replace(" ", "-")
        folder.mkdir()
        env = {SWITCH: on, switches.BESIDE_TOKENS: "4096", "TEST_INSTRUMENTS": "tests.gpu.beside_counter:install"}
        options = {"chunked_prefill_size": 512, "max_total_tokens": 8000, "attention_backend": "triton", **engine}
        return run_case(Coming(family), folder, "engine", env, **options), (folder / "engine.log").read_text()

    with ThreadPoolExecutor(4) as pool:
        return dict(zip(arms(), pool.map(one, arms()), strict=True))


Answers = dict[str, tuple[list[dict[str, Any]], str]]
KINDS = [f"{family} {kind}" for family in FAMILIES for kind in ("mtp", "plain", "unified")]


def joined(log: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in re.findall(r"BESIDE (\{.*\})", log)]


@pytest.mark.parametrize("kind", KINDS)
def test_forwards_are_joined_and_none_fails(kind: str, answers: Answers) -> None:
    log = answers[f"{kind} 1"][1]
    steps = joined(log)
    print(kind, steps)
    assert len(steps) >= 4, "three prompts, one of them in chunks"
    assert "a mixed batch failed" not in log
    assert not joined(answers[f"{kind} 0"][1])


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_are_those_of_steps_in_turn(kind: str, answers: Answers) -> None:
    """Greedy in bfloat16: equal up to where two logits nearly tie."""
    pairs = zip(answers[f"{kind} 1"][0], answers[f"{kind} 0"][0], strict=True)
    alike = total = 0
    for ours, theirs in pairs:
        tokens = list(zip(ours["token_ids"], theirs["token_ids"], strict=True))
        alike += next((at for at, (one, other) in enumerate(tokens) if one != other), len(tokens))
        total += len(tokens)
    print(kind, f"{alike} of {total} tokens before a first difference")
    assert alike >= ALIKE * total


@pytest.mark.parametrize("family", FAMILIES)
def test_as_many_drafts_are_accepted(family: str, answers: Answers) -> None:
    steps = [sum(one["meta_info"]["spec_verify_ct"] for one in answers[f"{family} mtp {on}"][0]) for on in "01"]
    print(family, steps)
    assert steps[1] <= steps[0] * 1.05


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_in_a_joined_forward_waits_for_the_device(kind: str, answers: Answers) -> None:
    """From the metadata to the logits; the first forwards compile and are not counted."""
    found = [step["waits"] for step in joined(answers[f"{kind} 1"][1])[2:]]
    print(kind, found)
    assert not [place for waits in found for place in waits]


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_in_an_iteration_waits_for_the_device(kind: str, answers: Answers) -> None:
    """Choosing batches and launching both; the results of the iteration before come by an event, which is not counted."""
    found = [json.loads(line) for line in re.findall(r"ITERATION (\{.*\})", answers[f"{kind} 1"][1])][2:]
    print(kind, found)
    assert found
    assert not [place for iteration in found for place in iteration["waits"]]


def test_a_card_times_its_steps() -> None:
    """However late the host asks for it."""
    clock, stream = step_clock.CardClock(), torch.cuda.Stream()
    marks = [clock.mark(stream)]
    for cycles in (20_000_000, 60_000_000):  # some 10 and 30 ms
        with torch.cuda.stream(stream):
            torch.cuda._sleep(cycles)
        marks.append(clock.mark(stream))
    stream.synchronize()
    time.sleep(0.2)
    first, second, third = map(clock.at, marks)
    assert first == 0.0
    assert 0.002 < second < 0.05
    assert 2.5 < (third - second) / second < 3.5
