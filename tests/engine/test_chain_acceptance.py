"""What a verify step accepts by one launch, in real engines with interpreted kernels: the tokens and verify steps of SGLang's launches."""

import re
from typing import Any

import pytest

from sglang_gemma4.serving.launch import resolve
from tests.engine.test_one_window import OVERLAPPED
from tests.harness.engine_fork import Group, Nursery, Output
from tests.harness.inputs.drafting import MTP
from tests.harness.instruments.chain_watch import COMMITTED, LAUNCHED, RELAYED
from tests.harness.left_to_sglang import left

PROMPTS = [[2, *((7 * i + 31 * n) % 700 + 300 for i in range(8 + 9 * n))] for n in range(3)]
GREEDY = {"max_new_tokens": 12, "temperature": 0.0}
LOOPS: dict[str, tuple[str, dict[str, Any]]] = {"overlapped": ("loop_modes:overlapping ", OVERLAPPED), "synchronous": ("", {})}
OTHERS: list[dict[str, Any]] = [
    {"temperature": 0.9, "top_k": 20, "sampling_seed": 7},
    {"frequency_penalty": 0.7},
    {"logit_bias": {"400": 60.0}},
    {"min_new_tokens": 9},
]
SIMULATED = {"SGLANG_SIMULATE_ACC_LEN": "2", "SGLANG_SIMULATE_ACC_TOKEN_MODE": "real-draft-token"}


def serve(nursery: Nursery, groups: list[Group], ours: bool, loop: str, name: str, env: dict[str, str] | None = None) -> list[list[Output]]:
    model = resolve(name)
    instruments, more = LOOPS[loop]
    without = {} if ours else {"SGLANG_GEMMA4_WITHOUT": "chain_acceptance"}
    env = {"TEST_INSTRUMENTS": f"{instruments}chain_watch:install", **without, **(env or {})}
    options: dict[str, Any] = {**MTP, "speculative_draft_model_path": f"{model}-assistant", **more}
    return nursery.run(model, groups, env=env, time_limit=400, **options)


def same(ours: list[Output], stock: list[Output]) -> None:
    """Tokens and verify steps."""
    for answer, reference in zip(ours, stock, strict=True):
        assert answer.token_ids == reference.token_ids
        assert answer.meta_info["spec_verify_ct"] == reference.meta_info["spec_verify_ct"]


@pytest.mark.parametrize(
    ("loop", "name", "env"),
    [
        ("overlapped", "tiny-26b-a4b", {}),
        ("synchronous", "tiny-e2b", {}),
        ("overlapped", "tiny-e2b", SIMULATED),
    ],
    ids=["overlapped", "synchronous", "simulated"],
)
def test_the_same_tokens_and_verify_steps(loop: str, name: str, env: dict[str, str], interpreting: Nursery) -> None:
    """Greedy batches that grow and shrink, and after them those whose logits are changed or sampled from, alone and beside greedy ones."""
    groups = [Group(PROMPTS, [{**GREEDY, "max_new_tokens": tokens} for tokens in (5, 12, 9)])]
    groups += [Group(PROMPTS[:2], [{**GREEDY, **other}, GREEDY]) for other in OTHERS]
    ours, stock = (serve(interpreting, groups, each, loop, name, env) for each in (True, False))
    for mine, theirs in zip(ours, stock, strict=True):
        same(mine, theirs)
    log = ours[0][0].log
    assert len({int(requests) for requests in re.findall(rf"{LAUNCHED} (\d+)", log)}) > 1, "batches grow and shrink"
    assert log.count(LAUNCHED) == log.count(COMMITTED)
    assert log.count(RELAYED) == (log.count(LAUNCHED) if loop == "overlapped" else 0)
    assert LAUNCHED not in stock[0][0].log
    assert "chain_acceptance" not in left(log)
    accepted = [(len(answer.token_ids), answer.meta_info["spec_verify_ct"]) for answer in ours[0]]
    assert any(tokens > steps + 1 for tokens, steps in accepted), "drafts accepted"
