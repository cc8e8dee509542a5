"""Long prefills through FlashAttention: keys put in order under Triton's interpreter, with a stand-in for the attention itself."""

from typing import Any

import pytest
import torch

from sglang_gemma4.attention.flash_prefill import FlashPrefill
from sglang_gemma4.kernels import key_rows as op
from sglang_gemma4.kernels.prefill_attention import prefill_attention_reference
from tests.engine.flash_standin import varlen
from tests.interpreted.test_prefill_attention import POISON, TOLERANCE, case

CASES = [
    ([0, 0], [37, 5]),
    ([33, 0, 16], [3, 40, 17]),
    ([100, 15, 1], [50, 1, 33]),
    ([64], [64]),
    ([5], [0]),
    ([0, 17, 0, 1, 16], [1, 15, 0, 31, 16]),
]


@pytest.fixture(autouse=True)
def poisoned() -> Any:
    """Whatever the launchers allocate begins as NaN."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize(("prefixes", "tokens"), CASES)
def test_rows_in_order(prefixes: list[int], tokens: list[int], index: torch.dtype) -> None:
    given = case(prefixes, tokens, 4, 2, 16, 32)
    named = {name: given[name] for name in ("k", "v", "k_buffer", "v_buffer", "qo_indptr", "kv_indptr")}
    indices = given["kv_indices"].to(index)
    expected = op.key_rows_reference(**named, kv_indices=indices)
    found = op.key_rows(**named, kv_indices=indices)
    rows = sum(prefixes) + sum(tokens)
    for ours, reference in zip(found, expected, strict=True):
        assert ours.is_contiguous()
        assert torch.equal(ours[:rows], reference)
        assert not (ours[:rows] == POISON).any()
        assert (ours[rows:] == 0).all(), "what lies behind the last request"


@pytest.mark.parametrize("window", [-1, 0, 5, 31])
@pytest.mark.parametrize(("prefixes", "tokens"), CASES[:4])
def test_equals_our_kernel_s_reference(prefixes: list[int], tokens: list[int], window: int) -> None:
    if window >= 0:
        prefixes = [min(prefix, window) for prefix in prefixes]  # of a sliding layer, SGLang lists these
    given = case(prefixes, tokens, 4, 2, 16, 16)
    if not sum(prefixes):
        given["kv_indices"] = given["kv_indices"][:0]
    expected = prefill_attention_reference(**given, window=window)
    found = torch.full_like(expected, POISON)
    flash = FlashPrefill(varlen)
    flash(**given, out=found, longest=max(tokens), window=window)
    torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=TOLERANCE)
    assert flash.steps == 1


def test_warming_takes_every_kind_of_layer() -> None:
    called: list[tuple[int, ...]] = []

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **named: Any) -> None:
        called.append((q.shape[1], k.shape[1], q.shape[2], named["window_size"][0], k.shape[0] - q.shape[0]))
        varlen(q, k, v, **named)

    flash = FlashPrefill(attend)
    assert flash.warm({(4, 2, 16, 31), (4, 1, 32, -1)}, torch.float32, "cpu") >= 0
    assert called == [(4, 1, 32, -1, 0), (4, 1, 32, -1, 2), (4, 2, 16, 31, 0), (4, 2, 16, 31, 2)]
    assert flash.steps == 0
