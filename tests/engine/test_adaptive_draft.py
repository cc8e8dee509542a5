"""Adaptive draft length in real engines: the tokens of plain decoding whatever the length, and drafts as good after a pause as without."""

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from sglang_gemma4.tiny import chat_format, checkpoints, dialogues
from tests.harness.engine_fork import Group, Nursery, Output
from tests.harness.inputs import mtp_cases
from tests.harness.instruments import step_census

LENGTHS_BY_BATCH = {"1": {"candidate_steps": [3]}, "2": {"candidate_steps": [0]}, "3": {"candidate_steps": [1]}}
"""No choice at all: 3 draft steps for one request, none for two, 1 for more. The batch's size switches."""


def prompts(number: int) -> list[str]:
    rng = random.Random(5)
    return [chat_format.render(dialogues.chat(rng, "held_out"), prompt_only=True) for _ in range(number)]


def serve(
    nursery: Nursery, family: str, groups: list[Group], config: Any = None, chain: str = "0", instruments: str = "", **engine: Any
) -> list[list[Output]]:
    model = checkpoints.SHIPPED / family
    options: dict[str, Any] = {"max_running_requests": 4, **engine}
    if config is not None:
        options |= {"speculative_draft_model_path": f"{model}-assistant", "speculative_adaptive": True}
        options |= {"speculative_adaptive_config": config} if config else {}
    env = {"SGLANG_GEMMA4_FROZEN_CHAIN": chain, "TEST_INSTRUMENTS": instruments}
    return nursery.run(model, groups, env=env, **options)


def staggered() -> list[Group]:
    """Requests that end one after the other, so that batches of four, three, two and one are decoded."""
    asked = prompts(7)
    return [Group(asked, [{"max_new_tokens": 8 + 9 * number} for number in range(len(asked))], flush=True)]


def tokens(outputs: list[list[Output]]) -> list[list[list[int]]]:
    return [[output.token_ids for output in group] for group in outputs]


def switches(log: str) -> set[tuple[int, int]]:
    """From one draft length to another, as SGLang logs each change of its runtime state."""
    return {(int(old), int(new)) for old, new in re.findall(r"Switch adaptive runtime state: steps (\d+) -> (\d+)", log)}


@pytest.fixture(scope="module")
def by_batch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("adaptive") / "by_batch.json"
    path.write_text(json.dumps(LENGTHS_BY_BATCH))
    return path


@pytest.fixture(scope="module")
def plain(nursery: Nursery) -> list[list[list[int]]]:
    """What tiny-26b-a4b answers without a draft."""
    return tokens(serve(nursery, "tiny-26b-a4b", staggered()))


def assert_switched(outputs: list[list[Output]]) -> None:
    found = switches(outputs[0][0].log)
    assert {new for _, new in found} == {0, 1, 3}
    assert {(1, 0), (0, 3)} <= found, "three requests, then two, then one"


def test_tokens_are_those_of_plain_decoding_while_the_length_switches(
    plain: list[list[list[int]]], nursery: Nursery, by_batch: Path
) -> None:
    adaptive = serve(nursery, "tiny-26b-a4b", staggered(), by_batch)
    assert tokens(adaptive) == plain
    assert_switched(adaptive)


def test_so_they_are_with_chained_drafts_and_the_centroid_head(nursery: Nursery, by_batch: Path) -> None:
    adaptive = serve(nursery, "tiny-e2b", staggered(), by_batch, chain="1")
    assert tokens(adaptive) == tokens(serve(nursery, "tiny-e2b", staggered()))
    assert_switched(adaptive)


OF_A_TREE = {f"aten.{name}" for name in ("full.default", "fill_.Scalar", "mul.Tensor", "repeat_interleave.self_int", "where.self")}


@pytest.mark.parametrize("overlapped", [True, False], ids=["overlapped", "synchronous"])
def test_a_plain_step_makes_no_tree_and_walks_none(
    overlapped: bool, plain: list[list[list[int]]], nursery: Nursery, by_batch: Path
) -> None:
    """Of two requests, beside the target's forward: the operators of SGLang's loop and of a step of one token a request, no others.

    On a CPU SGLang finds the slots of the new tokens with many operators, on a card with one kernel.
    """
    instruments = "step_census:overlapped" if overlapped else "step_census:watch"
    adaptive = serve(
        nursery, "tiny-26b-a4b", staggered(), by_batch, chain="1", instruments=instruments, disable_overlap_schedule=not overlapped
    )
    assert tokens(adaptive) == plain
    log = adaptive[0][0].log
    assert ("RELAYED" in log) is overlapped
    operators, _ = step_census.read(log, 2)[0]
    assert not OF_A_TREE & set(operators)
    assert operators["aten.argmax.default"] == 1
    assert operators["aten.index_put_.default"] == (3 if overlapped else 0), "relayed: lengths, tokens, hidden states"
    assert operators.total() <= (28 if overlapped else 23), str(operators)


def test_what_plain_steps_leave_to_sglangs_verify_is_answered_as_without_a_draft(nursery: Nursery, tmp_path: Path) -> None:
    """Grammars, penalties, biases, log-probabilities and sampling, each beside greedy requests of which it asks nothing; no drafts."""
    path = tmp_path / "none.json"
    path.write_text(json.dumps({"1": {"candidate_steps": [0]}}))
    cases = [mtp_cases.groups()[name] for name in ("grammar", "biased", "penalised", "at_least")]
    sampling: list[dict[str, Any]] = [{"max_new_tokens": 12, "temperature": 0.8, "top_k": 1}, {"max_new_tokens": 12}, {"max_new_tokens": 9}]
    groups = [*cases, Group(prompts(3), sampling), Group(prompts(3), sampling[1:] + sampling[:1], logprobs=True, flush=True)]
    options = {**mtp_cases.ENGINE, "chain": "1"}
    found, expected = (serve(nursery, mtp_cases.MODEL, groups, config, **options) for config in (path, None))
    assert tokens(found) == tokens(expected)
    assert re.search(r"adaptive draft length by FastestSteps, steps \[0\]", found[0][0].log)
    for output, reference in zip(found[-1], expected[-1], strict=True):
        assert len(output.logprobs) == len(output.token_ids)
        assert output.logprobs == pytest.approx(reference.logprobs, abs=1e-4)


def test_drafts_after_a_pause_are_accepted_as_without_it(nursery: Nursery, by_batch: Path) -> None:
    """Two requests decode plainly until the short one ends. The other one then has four tokens to go, one verify step if its first draft is
    right, and must need as many verify steps as a server that is given the same text as a prompt and drafts from the start."""
    model = checkpoints.SHIPPED / "tiny-26b-a4b"
    asked, rest = prompts(24), 4
    pauses = [3 + pair % 6 for pair in range(len(asked) // 2)]  # tokens of the short one
    together = [
        Group(asked[2 * pair : 2 * pair + 2], [{"max_new_tokens": short + rest}, {"max_new_tokens": short}], flush=True)
        for pair, short in enumerate(pauses)
    ]
    paused = [group[0] for group in serve(nursery, model.name, together, by_batch)]
    alone = []
    for group, short, output in zip(together, pauses, paused, strict=True):
        begun = tokenized(model, group.prompts[0]) + output.token_ids[: short - 1]  # its prefill gives the last token of the pause
        alone.append(Group([begun], {"max_new_tokens": rest + 1}, flush=True))
    fresh = [group[0] for group in serve(nursery, model.name, alone, by_batch)]
    assert [output.token_ids for output in fresh] == [output.token_ids[-rest - 1 :] for output in paused]
    after = [output.meta_info["spec_verify_ct"] - (short - 1) for short, output in zip(pauses, paused, strict=True)]
    without = [output.meta_info["spec_verify_ct"] for output in fresh]
    assert after == without
    assert sum(after) < 2 * len(after), "the drafts are worth something"
    assert (0, 3) in switches(paused[0].log)


def tokenized(model: Path, text: Any) -> list[int]:
    """The token ids of a prompt, as the server makes them."""
    from transformers import AutoTokenizer

    ids: list[int] = AutoTokenizer.from_pretrained(model)(text)["input_ids"]
    return ids


def test_the_fastest_length_is_looked_for_and_the_tokens_stay(plain: list[list[list[int]]], nursery: Nursery) -> None:
    """With the shipped lengths plain decoding and drafts are timed; what wins on this machine is its own affair."""
    adaptive = serve(nursery, "tiny-26b-a4b", 3 * staggered(), "")
    assert tokens(adaptive) == 3 * plain
    log = adaptive[0][0].log
    assert re.search(r"adaptive draft length by FastestSteps, steps \[0, 1, 3, 5\]", log)
    assert "by FROZEN_KV_MTP, adaptive" in log
    assert {new for _, new in switches(log)} >= {0, 3}
    assert "did not match the oldest step" not in log


def test_sglangs_own_choice_can_be_asked_for(plain: list[list[list[int]]], nursery: Nursery, tmp_path: Path) -> None:
    path = tmp_path / "own.json"
    path.write_text(json.dumps({"policy": "accept_length", "1": {"candidate_steps": [0, 2], "warmup_batches": 2, "update_interval": 2}}))
    adaptive = serve(nursery, "tiny-26b-a4b", staggered(), path)
    assert tokens(adaptive) == plain
    assert re.search(r"adaptive draft length by AdaptiveSpeculativeParams, steps \[0, 2\]", adaptive[0][0].log)
