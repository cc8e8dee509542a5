"""Prompts whose prefix is read back from the host (HiCache), prefilled in one forward with running requests: tokens are those without.

The host's copies end as late as a card's may (``late_copies``): what nobody waited for is NaN. SGLang's pool checks are fatal in every step
and when idle, and ``LEFT`` counts the host's slots too.
"""

import ast
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest

from sglang_gemma4.patching import switches
from tests.engine.test_dropped_layers import HOST
from tests.engine.test_host_windows import from_host
from tests.engine.test_prefill_beside import ENGINE, SWITCH, joined
from tests.engine.test_whole_graphs import GRAPHS
from tests.harness.engine_fork import Group, Nursery, Output
from tests.harness.inputs.drafting import with_assistant
from tests.harness.inputs.mtp_cases import greedy, timed
from tests.harness.oracles.reference import CHECKPOINTS, text_prompts

PROMPTS = {"first-0": 150, "first-1": 163, "first-2": 158, "first-3": 171, "first-4": 140}
AGAIN = {"again-0": 30, "again-1": 90, "midchunk-4": 90, "again-2": 30, "again-3": 30}
"""Prompts that come again, and how much longer they are: one in two chunks, and one that is aborted after its first."""
WAITS = {"again-0": "first-4", "again-1": "again-0", "midchunk-4": "again-1", "again-2": "midchunk-4", "again-3": "midchunk-4"}
POOLS = {"max_total_tokens": 1000, "swa_full_tokens_ratio": 0.7, "max_running_requests": 4}
"""The long answer, a prompt or two beside it, and little else: idle prompts go to the host."""
COPIES = "host_cache:torch_copies host_cache:all_comes_back late_copies:install"


def group(model: str, prompts: Mapping[str, int], again: Mapping[str, int], tokens: int = 340, each: int = 4) -> Group:
    """A long answer; beside it prompts one after another, then each again with more text."""
    begun, *texts = text_prompts(model, [20, *prompts.values(), *again.values()])
    first, added = dict(zip(prompts, texts, strict=False)), texts[len(prompts) :]
    asked: list[dict[str, Any]] = [{"rid": "long"}]
    for last, rid in zip(["long", *prompts], prompts, strict=False):
        asked.append({"rid": rid, "after": [last, 2 if last == "long" else -1]})
    asked += [{"rid": rid, "after": [WAITS[rid] if len(prompts) > 2 else asked[-1]["rid"], -1]} for rid in again]
    longer = [first[f"first-{rid[-1]}"] + new for rid, new in zip(again, added, strict=True)]
    sampling = [greedy(tokens), *[greedy(each)] * len(prompts), *[greedy(2 * each + 1)] * len(again)]
    return timed([begun, *first.values(), *longer], sampling, asked)


@cache
def alone(nursery: Nursery, model: str) -> dict[str, list[int]]:
    """Plain decoding in turn, with room for all and nothing on the host."""
    env = {SWITCH: "0", "TEST_INSTRUMENTS": "beside_trace:watch"}
    found = nursery.run(
        CHECKPOINTS / model, [group(model, PROMPTS, AGAIN)], env=env, time_limit=400.0, **{**ENGINE, "max_total_tokens": 6000}
    )[0]
    assert not joined(found[0].log)
    return tokens_of(found)


def tokens_of(found: list[Output]) -> dict[str, list[int]]:
    """Of requests that were not aborted."""
    outputs = zip(["long", *PROMPTS, *AGAIN], found, strict=True)
    return {rid: output.token_ids for rid, output in outputs if not rid.startswith("midchunk")}


def serve(nursery: Nursery, model: str, instruments: str, copies: str = COPIES, **engine: Any) -> list[Output]:
    env = {SWITCH: "1", switches.BESIDE_TOKENS: "4096", "TEST_INSTRUMENTS": f"beside_trace:{instruments} {copies}"}
    return nursery.run(
        CHECKPOINTS / model, [group(model, PROMPTS, AGAIN)], env=env, time_limit=400.0, **{**ENGINE, **HOST, **POOLS, **engine}
    )[0]


def brought_back_beside(found: list[Output]) -> set[str]:
    """Requests with keys from the host, all other rows of which went through joined forwards: the first of these waited for the keys."""
    together, names = joined(found[0].log), set()
    for rid, output in zip(["long", *PROMPTS, *AGAIN], found, strict=True):
        rows = sum(step.rows[0] for step in together if step.prefilled == [rid])
        if from_host(output) and rows >= output.meta_info["prompt_tokens"] - output.meta_info["cached_tokens"]:
            names.add(rid)
    return names


def nothing_is_left(log: str) -> None:
    left = [ast.literal_eval(text) for text in re.findall(r"^LEFT (.*)$", log, re.MULTILINE)]
    assert left
    assert not any(tokens for one in left for tokens in one.values()), left


OVERLAPPED = {"disable_overlap_schedule": False}
LOOPS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "plain": ("tiny-26b-a4b", "watch", {}),
    "plain-overlapped": ("tiny-26b-a4b", "overlapped", OVERLAPPED),
    "mtp": ("tiny-26b-a4b", "watch", with_assistant(CHECKPOINTS / "tiny-26b-a4b")),
    "mtp-overlapped": ("tiny-26b-a4b", "overlapped", {**with_assistant(CHECKPOINTS / "tiny-26b-a4b"), **OVERLAPPED}),
    "mtp-write-back-pages": (
        "tiny-26b-a4b",
        "overlapped",
        {**with_assistant(CHECKPOINTS / "tiny-26b-a4b"), **OVERLAPPED, "hicache_write_policy": "write_back", "page_size": 16},
    ),
    "e2b-mtp-overlapped": ("tiny-e2b", "overlapped", {**with_assistant(CHECKPOINTS / "tiny-e2b"), **OVERLAPPED}),
    "mtp-retracted": ("tiny-26b-a4b", "retracting", {**with_assistant(CHECKPOINTS / "tiny-26b-a4b"), **OVERLAPPED}),
}


@pytest.mark.parametrize("loop", list(LOOPS))
def test_what_the_host_brings_back_is_waited_for(loop: str, nursery: Nursery) -> None:
    model, instruments, engine = LOOPS[loop]
    found = serve(nursery, model, instruments, **engine)
    log = found[0].log
    print("\n".join(re.findall(r"^(?:BESIDE|WAITED|LEFT).*$", log, re.MULTILINE)))
    for rid, output in zip(["long", *PROMPTS, *AGAIN], found, strict=True):
        print(rid, from_host(output), len(output.token_ids), output.meta_info["finish_reason"])
    assert tokens_of(found) == alone(nursery, model)
    assert "a mixed batch failed" not in log
    assert len(brought_back_beside(found) & set(AGAIN)) >= 2
    assert re.search(r"MIDCHUNK midchunk-4 prefilled [1-9]", log)
    assert any("midchunk-4" in step.prefilled for step in joined(log))
    nothing_is_left(log)


@pytest.mark.parametrize("loop", ["plain", "mtp-overlapped"])
def test_what_nobody_waits_for_is_wrong(loop: str, nursery: Nursery) -> None:
    """So the test above would see it."""
    model, instruments, engine = LOOPS[loop]
    found = serve(nursery, model, instruments, COPIES.replace("late_copies:install", "late_copies:unawaited"), **engine)
    whole = alone(nursery, model)
    wrong = {rid for rid, tokens in tokens_of(found).items() if tokens != whole[rid]}
    assert brought_back_beside(found) & wrong
    assert "long" not in wrong, "a running request's keys were there"


GRAPHED: dict[str, tuple[str, str, bool]] = {
    "pieces": ("beside_trace:overlapped recorded_graphs:install", "late_copies:install", True),
    "whole": ("recorded_graphs:whole", "late_copies:install", True),
    "whole-unawaited": ("recorded_graphs:whole", "late_copies:unawaited_by_graphs", False),
}


@pytest.mark.parametrize("case", list(GRAPHED))
def test_joined_forwards_in_graphs_wait_too(case: str, nursery: Nursery, interpreting: Nursery) -> None:
    """Between pieces each layer's attention waits; before a graph of a whole forward all layers are waited for, or prompts are wrong."""
    instruments, copies, right = GRAPHED[case]
    model, asked = "tiny-26b-a4b", group("tiny-26b-a4b", {"first-0": 100, "first-1": 130}, {"again-0": 40}, 60, 2)
    env = {SWITCH: "0", "TEST_INSTRUMENTS": "beside_trace:overlapped"}
    expected = nursery.run(CHECKPOINTS / model, [asked], env=env, time_limit=400.0, **{**ENGINE, **OVERLAPPED, "max_total_tokens": 6000})[0]
    env = {
        SWITCH: "1",
        switches.BESIDE_TOKENS: "4096",
        "TEST_INSTRUMENTS": f"{instruments} {COPIES.replace('late_copies:install', copies)}",
    }
    engine: dict[str, Any] = {**ENGINE, **HOST, **GRAPHS, "max_total_tokens": 250, "swa_full_tokens_ratio": 1.0}
    if case != "pieces":
        env["SGLANG_GEMMA4_ATTENTION"], engine["attention_backend"] = "1", "triton"
    engines = nursery if case == "pieces" else interpreting
    found = engines.run(CHECKPOINTS / model, [asked], env=env, time_limit=600.0, **engine)[0]
    log = found[0].log
    told = re.findall(r"^(?:BESIDE|WAITED|REPLAYED|RERUN|LEFT).*$|^.*prefill_beside.*$", log, re.MULTILINE)
    print("\n".join(told))
    assert from_host(found[-1]) > 30
    place = next(number for number, line in enumerate(told) if line.startswith("BESIDE") and "again-0" in line)
    before = [line for line in told[:place] if not line.startswith("BESIDE")][-8:]
    if case == "pieces":
        assert any(line.startswith("REPLAYED 64 for 41") for line in before)
        assert sum(line.startswith("WAITED") for line in before) > 1
    else:
        assert before[-1] == "RERUN 64"
        assert sum(line.startswith("WAITED") for line in before[-3:]) == right
    assert ([output.token_ids for output in found] == [output.token_ids for output in expected]) is right
    assert found[0].token_ids == expected[0].token_ids
