"""Long prefills through FlashAttention: keys put in order under Triton's interpreter, with a stand-in for the attention itself."""

import re
from typing import Any

import pytest
import torch

from sglang_gemma4.attention import flash_choice, flash_prefill
from sglang_gemma4.attention.flash_prefill import FlashPrefill, Kind
from sglang_gemma4.kernels.attention import key_rows as op
from sglang_gemma4.kernels.attention.prefill_attention import prefill_attention_reference
from sglang_gemma4.kernels.kv_cache.formats import quantise_reference
from tests.harness.instruments.flash_standin import varlen
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


def quantised(given: dict[str, Any], dtype: torch.dtype, scaled: bool = True) -> tuple[dict[str, Any], dict[str, Any]]:
    """The case with its cached keys as levels, and the new tokens' own in the same buffers; and what :func:`key_rows` takes beside."""
    slots, tokens = given["k_buffer"].shape[0], given["k"].shape[0]
    places = torch.randperm(tokens) + slots
    beside: dict[str, Any] = {"new_slots": places}
    made = dict(given)
    for name in "kv":
        rows = torch.cat([given[f"{name}_buffer"], torch.empty_like(given[name])])
        rows[places] = given[name]
        levels, scales = quantise_reference(rows, dtype)
        made[f"{name}_buffer"] = levels if scaled else rows.to(dtype)
        beside |= {f"{name}_scales": scales} if scaled else {}
    return made, beside


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize(("prefixes", "tokens"), CASES)
def test_levels_in_order(prefixes: list[int], tokens: list[int], scaled: bool, dtype: torch.dtype) -> None:
    """Every key comes from the cache, a prompt's own ones too: what ``k`` and ``v`` hold is not read."""
    given = case(prefixes, tokens, 4, 2, 16, 32)
    made, beside = quantised(given, dtype, scaled)
    named = {name: made[name] for name in ("k", "v", "k_buffer", "v_buffer", "qo_indptr", "kv_indptr", "kv_indices")}
    named |= {name: torch.full_like(named[name], float("nan")) for name in "kv"}
    expected = op.key_rows_reference(**named, **beside)
    found = op.key_rows(**named, **beside)
    rows = sum(prefixes) + sum(tokens)
    for ours, reference in zip(found, expected, strict=True):
        torch.testing.assert_close(ours[:rows], reference, atol=1e-6, rtol=1e-6)
        assert (ours[rows:] == 0).all(), "what lies behind the last request"


@pytest.mark.parametrize("window", [-1, 31])
@pytest.mark.parametrize(("prefixes", "tokens"), CASES[:4])
def test_levels_equal_our_kernel_s(prefixes: list[int], tokens: list[int], window: int) -> None:
    if window >= 0:
        prefixes = [min(prefix, window) for prefix in prefixes]
    made, beside = quantised(case(prefixes, tokens, 4, 2, 16, 16), torch.int8)
    if not sum(prefixes):
        made["kv_indices"] = made["kv_indices"][:0]
    expected = prefill_attention_reference(**made, window=window, **beside)
    found = torch.full_like(expected, POISON)
    FlashPrefill(varlen)(**made, out=found, longest=max(tokens), window=window, **beside)
    torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=TOLERANCE)


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


def test_every_kind_of_layer_is_compiled_and_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those it does not take, that fail, or where it is no faster stay with our kernel, by name."""
    called: list[tuple[int, ...]] = []

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **named: Any) -> None:
        assert v is not k, "by which FlashAttention-4 knows another kind of attention"
        called.append((q.shape[1], k.shape[1], q.shape[2], named["window_size"][0], k.shape[0] - q.shape[0]))
        if q.shape[1] == 8:
            raise RuntimeError("no such kernel\nand much more")
        varlen(q, k, v, **named)
        if k.shape[1] == 4:
            named["out"][-1] += 1

    times = {4: {64: [(2.0, 1.0), (1.0, 0.9)], 128: [(4.0, 1.0)]}, 2: {64: [(1.0, 0.1)], 128: [(4.0, 3.9)]}}
    monkeypatch.setattr(flash_choice, "measured", lambda flash, kind, dtype, device: times[kind.heads])
    monkeypatch.setattr(flash_prefill, "DTYPES", (torch.float32,))
    monkeypatch.setattr(flash_prefill, "HEAD_DIMS", (16, 32))
    kinds = frozenset({Kind(4, 2, 16, 31), Kind(2, 1, 32, -1), Kind(4, 4, 16, 31), Kind(8, 2, 16, 31), Kind(4, 2, 64, -1)})
    choice = flash_choice.chosen(attend, kinds, torch.float32, "cpu")
    assert called == [(2, 1, 32, -1, 200), (4, 2, 16, 31, 62), (4, 4, 16, 31, 62), (8, 2, 16, 31, 62)]
    assert choice.flash.least == {Kind(4, 2, 16, 31): 64}
    assert choice.taken == ["4/2 heads of 16, window 31 from 64 tokens (128 tokens take 1.00 ms, our kernel's 4.00)"]
    assert choice.left == [
        "2/1 heads of 32, no window: 128 tokens take 3.90 ms, our kernel's 4.00",
        "4/2 heads of 64, no window: head dimensions are 64 and 64; 16 or 32 for both is supported",
        choice.left[2],
        "8/2 heads of 16, window 31: RuntimeError: no such kernel",
    ]
    assert re.fullmatch(r"4/4 heads of 16, window 31: its output differs by \d\d\.\d times what rounding explains", choice.left[2])
    assert choice.flash.steps == 0
    assert flash_choice.chosen(attend, kinds, torch.float32, "cpu") is choice, "measured once"
    q, k = torch.zeros(64, 4, 16), torch.zeros(64, 2, 16)
    assert choice.flash.wants(q, k, 31)
    assert not choice.flash.wants(q[:63], k[:63], 31)
    assert not choice.flash.wants(q, k, -1)


def test_batches_of_up_to_64_requests_are_one_kernel() -> None:
    """A server compiles when a size first comes, and a request waits for it."""
    assert {op.padded(requests) for requests in range(1, 65)} == {64}
    assert [op.padded(requests) for requests in (65, 1024, 1025)] == [1024, 1024, 16384]
