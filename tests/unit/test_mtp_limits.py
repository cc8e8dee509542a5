"""What MTP cannot run with is one line that names value, limit and remedy."""

from typing import Any

import pytest

from sglang_gemma4.diagnostics import mtp_limits
from sglang_gemma4.diagnostics.preflight import ATTENTION_BACKENDS
from sglang_gemma4.models.config_files import PreflightError
from sglang_gemma4.speculative.views import NAMES

GOOD: dict[str, Any] = {
    "speculative_num_steps": 3,
    "speculative_eagle_topk": 1,
    "speculative_num_draft_tokens": 4,
    "speculative_adaptive": False,
    "speculative_draft_attention_backend": None,
    "speculative_attention_mode": "prefill",
    "kv_cache_dtype": "auto",
    "prefill_backend": "triton",
    "decode_backend": "triton",
}
TREE = {"speculative_eagle_topk": 2, "speculative_num_draft_tokens": 6}


def both(backend: str) -> dict[str, Any]:
    return {"prefill_backend": backend, "decode_backend": backend}


def lengths(steps: int | None, topk: int | None, tokens: int | None) -> dict[str, Any]:
    return dict(zip(mtp_limits.LENGTHS, (steps, topk, tokens), strict=True))


@pytest.mark.parametrize("backend", NAMES)
def test_a_chain_passes_where_there_is_an_adapter(backend: str) -> None:
    mtp_limits.check(GOOD | both(backend))


@pytest.mark.parametrize(
    "changes",
    [
        TREE,
        lengths(3, 1, 3),  # one drafted token is never verified: slower, not wrong
        lengths(2, 2, 7),
        lengths(1, 4, 5),
        TREE | both("fa4") | {"speculative_draft_attention_backend": "triton"},
        TREE | {"decode_backend": "trtllm_mha"},  # triton verifies
        TREE | both("triton") | {"speculative_draft_attention_backend": "trtllm_mha"},
        lengths(0, 1, 1) | {"speculative_adaptive": True},
        both("fa4") | {"kv_cache_dtype": "fp8_e4m3"},
        both("trtllm_mha") | {"kv_cache_dtype": "fp8_e4m3"},
    ],
)
def test_what_runs_passes(changes: dict[str, Any]) -> None:
    mtp_limits.check(GOOD | changes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (lengths(None, 1, 4), "--speculative-num-steps is not set, and SGLang has no default for MTP; give it"),
        (lengths(3, None, 4), "--speculative-eagle-topk is not set"),
        (lengths(3, 1, None), "--speculative-num-draft-tokens is not set"),
        (lengths(0, 1, 2), "--speculative-num-steps 0 is below 1; give at least 1, or run without MTP"),
        (lengths(3, 0, 4), "--speculative-eagle-topk 0 is below 1"),
        (lengths(3, 1, 1), "--speculative-num-draft-tokens 1 is below 2"),
        (
            lengths(3, 1, 5),
            "--speculative-num-draft-tokens 5: 3 steps of topk 1 make a tree of 4 tokens at most; use --speculative-num-dra",
        ),
        (lengths(2, 2, 8), "2 steps of topk 2 make a tree of 7 tokens at most; use --speculative-num-draft-tokens 7, or more --specul"),
        (TREE | both("fa4"), "topk 2: MTP drafts trees on triton and trtllm_mha only, not with --attention-backend fa4; use"),
        (TREE | both("intel_amx"), "not with --attention-backend intel_amx"),
        (TREE | {"speculative_draft_attention_backend": "fa4"}, "not with --speculative-draft-attention-backend fa4"),
        (TREE | both("trtllm_mha"), "topk 2: trtllm_mha verifies chains only and would treat a tree's branches as one text; use --specul"),
        (TREE | {"prefill_backend": "trtllm_mha"}, "trtllm_mha verifies chains only"),
        (TREE | {"decode_backend": "trtllm_mha", "speculative_attention_mode": "decode"}, "trtllm_mha verifies chains only"),
        (
            both("aiter"),
            "--attention-backend aiter: it is not known which of the target's KV state the MTP draft would read there; use one",
        ),
        ({"prefill_backend": "ascend"}, "--attention-backend ascend: it is not known"),
        ({"speculative_draft_attention_backend": "torch_native"}, "--speculative-draft-attention-backend torch_native: it is not known"),
        (both("trtllm_mha") | {"kv_cache_dtype": "nvfp4"}, "--kv-cache-dtype nvfp4: the MTP draft does not read the layout that trtllm"),
    ],
)
def test_one_line_with_value_limit_and_remedy(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(PreflightError) as error:
        mtp_limits.check(GOOD | changes)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_every_backend_that_gemma4_may_have_is_decided() -> None:
    """A backend that SGLang adds for Gemma 4 is refused for MTP until it has an adapter."""
    for backend in ATTENTION_BACKENDS:
        if backend not in NAMES:
            with pytest.raises(PreflightError, match=f"--attention-backend {backend}: .*, or run without MTP"):
                mtp_limits.check(GOOD | both(backend))
            mtp_limits.check(GOOD | both(backend), views=False)


def test_the_cpu_engine_drafts_trees() -> None:
    for name in mtp_limits.CPU_BACKENDS:
        mtp_limits.check(GOOD | TREE | both(name), cpu_engine=True)


@pytest.mark.parametrize("steps", [1, 2, 3])
@pytest.mark.parametrize("topk", [1, 2, 4])
def test_the_size_is_that_of_sglangs_own_tree(steps: int, topk: int) -> None:
    """SGLang chooses the draft by ``topk`` among these scores; one token more is one too many."""
    import torch
    from sglang.srt.speculative.eagle_utils import organize_draft_results
    from sglang.srt.speculative.spec_utils import select_top_k_tokens

    scores = None
    lists: tuple[list[Any], list[Any], list[Any]] = ([], [], [])
    hidden = torch.zeros(1, 8)
    for step in range(steps):
        rows = 1 if step == 0 else topk
        chances, tokens = torch.rand(rows, topk), torch.arange(rows * topk).view(rows, topk)
        _, hidden, scores, info = select_top_k_tokens(step, chances, tokens, hidden, scores, topk)
        for kept, new in zip(lists, info, strict=True):
            kept.append(new)
    most = mtp_limits.tree_size(steps, topk)
    assert organize_draft_results(*lists, most)[2].shape == (1, most - 1)
    with pytest.raises(RuntimeError, match="out of range"):
        organize_draft_results(*lists, most + 1)
