"""The life of requests under FROZEN_KV_MTP, against plain decoding with the same settings: equal tokens, whatever befalls the batch.

One engine decodes plainly, one drafts trees of width one (as stock does), one chains; each serves the groups of ``mtp_cases`` in turn,
with SGLang's pool checks fatal in every step and when idle. What a test is about is read from the scheduler's own steps, so a
case that was not met fails.
"""

import json
import re
from dataclasses import dataclass
from itertools import pairwise

import pytest

from tests.harness.engine_fork import EngineFailed, Nursery, Output
from tests.harness.inputs import mtp_cases
from tests.harness.inputs.mtp_cases import ENGINE, MODEL, MTP, Step, greedy, overshot, steps, timed
from tests.harness.oracles.reference import CHECKPOINTS, text_prompts

Answers = dict[str, list[Output]]


@dataclass
class Pair:
    """Answers by group: of MTP, and of plain decoding."""

    mtp: Answers
    plain: Answers

    def tokens_are_equal(self, group: str) -> None:
        found, expected = ([(output.token_ids, output.text) for output in answers[group]] for answers in (self.mtp, self.plain))
        assert found == expected

    def steps(self, *rids: str) -> list[Step]:
        return steps(self.mtp["together"][0].log, *rids)


def serve(nursery: Nursery, instruments: str, chain: str, engine: dict[str, object]) -> Answers:
    groups = mtp_cases.groups()
    env = {"TEST_INSTRUMENTS": instruments, "SGLANG_GEMMA4_FROZEN_CHAIN": chain}
    found = nursery.run(CHECKPOINTS / MODEL, list(groups.values()), env=env, **ENGINE, **engine)  # type: ignore[arg-type]
    return dict(zip(groups, found, strict=True))


@pytest.fixture(scope="module")
def plain(nursery: Nursery) -> Answers:
    return serve(nursery, "mtp_trace:watch", "0", {})


@pytest.fixture(scope="module", params=[False, True], ids=["tree-synchronous", "chain-overlapped"])
def pair(request: pytest.FixtureRequest, nursery: Nursery, plain: Answers) -> Pair:
    overlaps = request.param
    if overlaps:
        mtp = serve(nursery, "loop_modes:overlapping", "1", {**MTP, "disable_overlap_schedule": False})
    else:
        mtp = serve(nursery, "mtp_trace:watch", "0", MTP)
    log = mtp["together"][0].log
    assert (not re.search(r"switched off: .*frozen_chain", log)) == ("RELAYED" in log) == overlaps
    return Pair(mtp, plain)


def test_steps_that_accept_nothing(pair: Pair) -> None:
    pair.tokens_are_equal("none_accepted")
    whole_batch = pair.steps("bad-0")
    assert len(whole_batch) == 19, "a token a step after the first"
    assert all(accepted == 0 for step in whole_batch for accepted in step.accepted)
    assert any(len(step.rids) == 4 for step in whole_batch)

    pair.tokens_are_equal("some_accepted")
    mixed = [dict(zip(step.rids, step.accepted, strict=True)) for step in pair.steps("bad-4")]
    assert all(accepted == 0 for step in mixed for rid, accepted in step.items() if rid.startswith("bad"))
    assert sum(any(step.get(f"good-{number}") for number in range(2)) for step in mixed) >= 3

    pair.tokens_are_equal("strange")
    refused = [step.accepted.count(0) for step in pair.steps("strange")]
    assert max(refused) >= 2, "prompts of random tokens, drafts left alone"


def test_all_end_in_the_same_verify(pair: Pair) -> None:
    pair.tokens_are_equal("together")
    together = pair.steps("gate4.same")
    assert all(len(step.rids) == 4 and len(set(step.accepted)) == 1 for step in together)
    assert all(overshot(output) for output in pair.mtp["together"]), "the last run goes past the length asked for"


def test_batches_shrink_grow_and_start_again(pair: Pair) -> None:
    pair.tokens_are_equal("coming_and_going")
    batches = [set(step.rids) for step in pair.steps("life-")]
    changes = [(before - after, after - before) for before, after in pairwise(batches)]
    kept = [before & after for before, after in pairwise(batches)]
    assert any(gone and same for (gone, _), same in zip(changes, kept, strict=True)), "filtered"
    assert any(new and same for (_, new), same in zip(changes, kept, strict=True)), "merged into a running batch"
    assert {"life-g"} in batches, "alone, after all others had ended"
    assert not any("life-g" in batch and len(batch) > 1 for batch in batches)
    assert not any("life-f" in batch for batch in batches), "one token: ends at its prefill, among others that go on"


def test_retraction(pair: Pair) -> None:
    pair.tokens_are_equal("retracted")
    assert sum(output.meta_info["num_retractions"] for output in pair.mtp["retracted"]) >= 2
    log = pair.mtp["retracted"][0].log
    assert "KV cache pool is full. Retract requests" in log


def test_abort(pair: Pair) -> None:
    found, expected = pair.mtp["aborted"], pair.plain["aborted"]
    for stays in (0, 2, 4):
        assert found[stays].token_ids == expected[stays].token_ids
    whole = pair.plain["unaborted"][0].token_ids
    running, waiting, prefilling = found[1], found[3], found[5]
    assert all(output.meta_info["finish_reason"]["type"] == "abort" for output in (running, waiting, prefilling))
    assert 9 <= len(running.token_ids) < len(whole)
    assert running.token_ids == whole[: len(running.token_ids)]
    assert waiting.token_ids == prefilling.token_ids == []
    assert re.search(r"MIDCHUNK midchunk-5 prefilled [1-9]", running.log)
    drafting = pair.steps("abort-1")
    assert any({"stay-0", "stay-2"} < set(step.rids) for step in drafting), "in mid-draft, beside others"
    assert len(pair.steps("stay-2")) > len(drafting)


def test_chunked_prefill(pair: Pair) -> None:
    pair.tokens_are_equal("chunked")
    log = pair.mtp["chunked"][0].log
    assert "Mixed chunked prefill is disabled because of using Frozen-KV MTP speculative decoding" in log
    pending = re.findall(r"Prefill batch, #new-seq: \d+, #new-token: 64, .*#running-req: ([1-9]\d*), .*#pending-token: ([1-9]\d*)", log)
    assert len(pending) >= 3, "chunks of a prompt while others decode"
    assert any({"chunk-1", "chunk-2"} <= set(step.rids) for step in pair.steps("chunk-1"))


def test_grammar_beside_free_requests(pair: Pair) -> None:
    pair.tokens_are_equal("grammar")
    answers = pair.mtp["grammar"]
    for number in (0, 5):
        assert set(json.loads(answers[number].text)) == {"town", "ruler"}
    assert re.fullmatch(mtp_cases.REGEX, answers[2].text)
    assert re.fullmatch(mtp_cases.TOWN_SENTENCE, answers[3].text)
    assert answers[2].meta_info["spec_num_correct_drafts"] > 0, "drafts accepted under a grammar"
    free, constrained = "gate6.grammar-1", "gate6.grammar-2"
    mixed = [step for step in pair.steps(constrained) if free in step.rids]
    assert any(step.accepted[step.rids.index(constrained)] for step in mixed)
    assert any(step.accepted[step.rids.index(free)] for step in mixed)


def test_logprobs(pair: Pair) -> None:
    pair.tokens_are_equal("logprobs")
    for number, (found, expected) in enumerate(zip(pair.mtp["logprobs"], pair.plain["logprobs"], strict=True)):
        assert len(found.logprobs) == (0 if number == 2 else len(found.token_ids))
        assert found.logprobs == pytest.approx(expected.logprobs, abs=1e-4)
        tops, due = (output.meta_info.get("output_top_logprobs") or [] for output in (found, expected))
        assert len(tops) == len(found.logprobs)
        for one, other in zip(tops, due, strict=True):
            assert [entry[0] for entry in one] == pytest.approx([entry[0] for entry in other], abs=1e-4)
            assert len({entry[1] for entry in one} & {entry[1] for entry in other}) >= len(one) - 1, "the last may tie with the next"
    lengths = [len(output.meta_info["output_top_logprobs"][0]) for output in pair.mtp["logprobs"] if output.logprobs]
    assert lengths == [3, 5, 2]
    assert any(max(step.accepted) >= 2 for step in pair.steps("prob-0"))


def test_stops_inside_an_accepted_run(pair: Pair) -> None:
    whole = ""
    inside = 0
    for found, expected in zip(pair.mtp["stops"], pair.plain["stops"], strict=True):
        stop = found.meta_info.get("stop")
        if stop is None:
            whole = found.text
            assert found.token_ids == expected.token_ids
            continue
        assert (found.token_ids, found.text) == (expected.token_ids, expected.text), stop
        assert whole.startswith(found.text)
        inside += overshot(found)
    assert inside >= 12


def test_logit_bias(pair: Pair) -> None:
    pair.tokens_are_equal("biased")
    assert any(max(step.accepted) for step in pair.steps("bias-"))


def test_penalties(pair: Pair) -> None:
    pair.tokens_are_equal("penalised")
    assert any(max(step.accepted) for step in pair.steps("penalty-"))


def test_min_new_tokens(pair: Pair) -> None:
    pair.tokens_are_equal("at_least")
    lengths = [len(output.token_ids) for output in pair.plain["at_least"]]
    assert 14 <= lengths[0] < 40
    assert 25 <= lengths[1] <= 40


def test_a_leak_does_not_pass(nursery: Nursery) -> None:
    """The checks these tests lean on: one slot forgotten ends the engine."""
    [prompt] = text_prompts(MODEL, [40])
    group = timed([prompt] * 3, [greedy(30)] * 3, mtp_cases.named("leaky", 3))
    with pytest.raises(EngineFailed, match=r"Mem Leak Detected|memory leak detected"):
        nursery.run(CHECKPOINTS / MODEL, [group, group], env={"TEST_INSTRUMENTS": "mtp_trace:leak"}, time_limit=60, **ENGINE, **MTP)
