"""Greedy verify steps without logits in memory, in real engines: the tokens, verify steps and log-probabilities of logits in memory."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from sglang_gemma4.serving.launch import resolve
from tests.engine.test_oracle import MTP
from tests.harness.engine_fork import Group, Nursery, Output

PROMPTS = [[2, *((7 * i + 31 * n) % 700 + 300 for i in range(8 + 9 * n))] for n in range(3)]
GREEDY = {"max_new_tokens": 10}


def serve(
    nursery: Nursery, groups: list[Group], on: str, name: str = "tiny-26b-a4b", env: dict[str, str] | None = None, **engine: Any
) -> list[list[Output]]:
    model = resolve(name)
    options: dict[str, Any] = {**MTP, "speculative_draft_model_path": f"{model}-assistant", **engine}
    switches = {"SGLANG_GEMMA4_VERIFY_ARGMAX": on, "TEST_INSTRUMENTS": "verify_head_counter:install", **(env or {})}
    return nursery.run(model, groups, env=switches, time_limit=400, **options)


def same(ours: list[Output], stock: list[Output]) -> None:
    for answer, reference in zip(ours, stock, strict=True):
        assert answer.token_ids == reference.token_ids
        assert answer.meta_info["spec_verify_ct"] == reference.meta_info["spec_verify_ct"]


def asked(outputs: list[Output]) -> set[str]:
    return set(re.findall(r"VERIFY asks for (\w+)", outputs[0].log))


@pytest.mark.parametrize(("name", "worker"), [("tiny-26b-a4b", "1"), ("tiny-e2b", "0")], ids=["v2", "v1"])
def test_greedy_answers(interpreting: Nursery, name: str, worker: str) -> None:
    (ours,), (stock,) = (serve(interpreting, [Group(PROMPTS, GREEDY)], on, name, {"SGLANG_FROZEN_KV_MTP_V2": worker}) for on in ("1", "0"))
    assert asked(ours) == {"tokens"}
    assert asked(stock) == set()
    assert "verify_argmax declined" not in ours[0].log
    same(ours, stock)
    assert sum(answer.meta_info["spec_verify_ct"] for answer in ours) < sum(len(answer.token_ids) for answer in ours), "drafts accepted"


NARROW = {"SGLANG_GEMMA4_WITH": "narrow_verify_head"}


@pytest.mark.parametrize("name", ["tiny-26b-a4b", "tiny-e2b"])
def test_the_same_tokens_from_the_narrow_head(interpreting: Nursery, name: str) -> None:
    env = {**NARROW, "TEST_INSTRUMENTS": "verify_head_counter:install head_counter:install"}
    (ours,), (stock,) = (serve(interpreting, [Group(PROMPTS, GREEDY)], on, name, env) for on in ("1", "0"))
    assert asked(ours) == {"tokens"}
    assert "TOLD by narrow_argmax over (1024, " in ours[0].log
    assert re.search(r"the int8 copy of the target's head, 1,024 tokens x \d+, takes 0\.\d MiB of the card", ours[0].log)
    assert "narrow_verify_head declined" not in ours[0].log
    assert "TOLD by narrow_argmax" not in stock[0].log
    same(ours, stock)


def test_the_narrow_head_needs_the_other(interpreting: Nursery) -> None:
    env = {**NARROW, "SGLANG_GEMMA4_WITHOUT": "verify_argmax"}
    (found,) = serve(interpreting, [Group(PROMPTS[:1], GREEDY)], "1", env=env)
    assert found[0].log.count("narrow_verify_head declined: verify_argmax is left out, and verify steps compute logits") == 1


def test_what_needs_logits_gets_them(interpreting: Nursery) -> None:
    """Each by itself, and greedy requests beside it in its batch."""
    kinds: list[dict[str, Any]] = [
        {"temperature": 0.9, "top_k": 20, "sampling_seed": 7},
        {"frequency_penalty": 0.7},
        {"logit_bias": {"400": 60.0}},
        {"min_new_tokens": 9},
        {"json_schema": '{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}'},
    ]
    groups = [Group(PROMPTS[:2], [{**GREEDY, "temperature": 0.0, **kind}, {**GREEDY, "temperature": 0.0}]) for kind in kinds]
    groups.append(Group(PROMPTS[:2], GREEDY, logprobs=True))
    ours, stock = (serve(interpreting, groups, on) for on in ("1", "0"))
    for mine, theirs in zip(ours, stock, strict=True):
        same(mine, theirs)
    assert asked(ours[0]) == {"tokens", "logits"}
    for answer, reference in zip(ours[-1], stock[-1], strict=True):
        assert answer.logprobs == pytest.approx(reference.logprobs, abs=1e-4)


def test_lengths_that_switch(interpreting: Nursery, tmp_path: Path) -> None:
    """A length of no drafts is a verify step of one token, which reads its result by itself."""
    path = tmp_path / "by_batch.json"
    path.write_text(json.dumps({"1": {"candidate_steps": [3]}, "2": {"candidate_steps": [0]}}))
    adaptive: dict[str, Any] = {"speculative_adaptive": True, "speculative_adaptive_config": path}
    lengths = [{"max_new_tokens": 6 + 6 * number} for number in range(2)]
    (ours,), (stock,) = (serve(interpreting, [Group(PROMPTS[:2], lengths)], on, **adaptive) for on in ("1", "0"))
    assert asked(ours) == {"tokens"}
    assert "Switch adaptive runtime state: steps" in ours[0].log
    assert [answer.token_ids for answer in ours] == [answer.token_ids for answer in stock]


def test_simulated_acceptance(interpreting: Nursery) -> None:
    """Of which the bonus token is the target's."""
    env = {"SGLANG_SIMULATE_ACC_LEN": "2", "SGLANG_SIMULATE_ACC_TOKEN_MODE": "real-draft-token"}
    (ours,), (stock,) = (serve(interpreting, [Group(PROMPTS[:2], GREEDY)], on, env=env) for on in ("1", "0"))
    assert asked(ours) == {"tokens"}
    same(ours, stock)


def test_without_triton_logits_stay(nursery: Nursery) -> None:
    (ours,) = serve(nursery, [Group(PROMPTS, GREEDY)], "1")
    assert asked(ours) == set()
    assert ours[0].log.count("verify_argmax declined: Triton does not run on cpu") == 1
    assert all(answer.token_ids for answer in ours)
