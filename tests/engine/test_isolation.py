"""A request that raises in a step of the scheduler is answered with an error; the others' tokens are those of an engine without it.

Engines run with SGLang's own checks of pools and tables, all fatal: a slot that a failure leaks or frees twice ends them.
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from sglang_gemma4.tiny import checkpoints
from tests.engine.test_other_drafters import DRAFTERS
from tests.engine.test_two_ranks import RANKS
from tests.harness.engine_fork import EngineFailed, Group, Nursery
from tests.harness.instruments.faults import POISON, SAID

TARGET = checkpoints.SHIPPED / "tiny-26b-a4b"
MTP = {"speculative_draft_model_path": "auto"}
OVERLAP = {"disable_overlap_schedule": False}
GOOD = [[2] + [(5 * i + 17 * n) % 600 + 340 for i in range(length)] for n, length in enumerate((12, 40, 70, 25))]
SAMPLING = {"temperature": 0, "ignore_eos": True}
LENGTHS = (4, 24, 24, 24)
"""Tokens asked for; the first request ends while the poisoned one runs."""
ALONE = ("prefill", "prefill_behind", "decode", "preparation", "result", "admission", "receipt")


def mixed(engine: Any, group: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The client: every prompt a request of its own, all at once; an answer or what was raised, as a text."""

    async def ask(prompt: list[int], tokens: int) -> dict[str, Any]:
        try:
            out = await engine.async_generate(input_ids=prompt, sampling_params={**SAMPLING, "max_new_tokens": tokens})
        except Exception as error:
            return {"token_ids": [], "text": f"{type(error).__name__}: {getattr(error, 'detail', error)}", "logprobs": [], "meta_info": {}}
        return {"token_ids": out["output_ids"], "text": "", "logprobs": [], "meta_info": out["meta_info"]}

    async def everybody() -> list[dict[str, Any]]:
        return list(await asyncio.gather(*(ask(*one) for one in zip(group["prompts"], group["extra"]["tokens"], strict=True))))

    answers: list[dict[str, Any]] = engine.loop.run_until_complete(everybody())
    return answers


def group(*faults: str) -> Group:
    """The good prompts with poisoned ones among them."""
    bad = [[2, 350, POISON[fault], 360, 370, 380] for fault in faults]
    prompts, tokens = [*GOOD[:2], *bad, *GOOD[2:]], [*LENGTHS[:2], *[24] * len(bad), *LENGTHS[2:]]
    return Group(prompts, client="tests.engine.test_isolation:mixed", extra={"tokens": tokens})


@pytest.fixture(scope="module")
def expected(nursery: Nursery) -> list[list[int]]:
    (outputs,) = nursery.run(TARGET, [group()])
    return [output.token_ids for output in outputs]


def run(nursery: Nursery, groups: list[Group], **engine: Any) -> list[tuple[list[list[int]], list[str], str]]:
    """Of each group the tokens of its good requests, what was said to the poisoned ones, and the log."""
    instruments = "faults:everywhere" + (" loop_modes:overlapping" if engine.keys() >= {*MTP, *OVERLAP} else "")
    found = nursery.run(TARGET, groups, {"TEST_INSTRUMENTS": instruments}, **engine)
    return [
        ([one.token_ids for one in [*outputs[:2], *outputs[-2:]]], [one.text for one in outputs[2:-2]], outputs[0].log) for outputs in found
    ]


LOOPS: dict[str, dict[str, Any]] = {
    "plain": {},
    "chunks": {"chunked_prefill_size": 32, "page_size": 16},
    "overlap": OVERLAP,
    "mtp": MTP,
    "mtp-overlap": {**MTP, **OVERLAP},
}


@pytest.mark.parametrize("loop", list(LOOPS))
def test_only_the_poisoned_request_fails(loop: str, nursery: Nursery, expected: list[list[int]]) -> None:
    answers = run(nursery, [*(group(fault) for fault in ALONE), group("prefill", "decode", "result")], **LOOPS[loop])
    for fault, (good, said, log) in zip([*ALONE, "three at once"], answers, strict=True):
        assert good == expected, fault
        assert all(SAID in one and "the server goes on" in one for one in said), (fault, said)
        assert "a step failed" in log


@pytest.mark.parametrize("kind", list(DRAFTERS))
def test_beside_drafts_with_keys_of_their_own(kind: str, nursery: Nursery, expected: list[list[int]], tmp_path: Path) -> None:
    """DFlash's worker takes the loop's inference mode for granted; without it every request of the batch failed when it was tried alone."""
    faults, (arguments, _) = ("prefill", "result"), DRAFTERS[kind]
    answers = run(nursery, [group(fault) for fault in faults], **arguments(tmp_path, TARGET.name))
    for fault, (good, said, _) in zip(faults, answers, strict=True):
        assert good == expected, fault
        assert all(SAID in one for one in said), (fault, said)


def test_what_fails_only_beside_others(nursery: Nursery, expected: list[list[int]]) -> None:
    """Two that fail together are served apart; one that always fails beside others ends, and those do not."""
    together, always, after = run(nursery, [group("two_together", "two_together"), group("always_together"), group()])
    assert together[:2] == (expected, ["", ""])
    assert SAID in always[1][0]
    assert after[0] == expected


def test_two_ranks(nursery: Nursery, expected: list[list[int]]) -> None:
    """Both have the failure, and agree on it; a failure of one rank alone ends the server, as the other waits in a collective."""
    groups = [group("prefill"), group("decode", "result")]
    found = nursery.run(TARGET, groups, {**RANKS, "TEST_INSTRUMENTS": "gloo_ranks:install faults:everywhere"}, tp_size=2)
    for outputs in found:
        assert [one.token_ids for one in [*outputs[:2], *outputs[-2:]]] == expected
        assert all(SAID in one.text for one in outputs[2:-2])
    with pytest.raises(EngineFailed, match="not every rank has this failure"):
        nursery.run(TARGET, groups[:1], {**RANKS, "TEST_INSTRUMENTS": "gloo_ranks:install faults:one_rank"}, tp_size=2)


def test_a_device_that_refuses_work_ends_the_server(nursery: Nursery) -> None:
    with pytest.raises(EngineFailed, match="the device refuses work after this failure"):
        nursery.run(TARGET, [group("prefill")], {"TEST_INSTRUMENTS": "faults:lost_device"})
