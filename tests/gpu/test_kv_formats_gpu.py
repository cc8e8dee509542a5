"""The KV cache per token and head on a card: what is written, attention against the reference, and its time beside bfloat16's."""

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from sglang_gemma4.attention import flash_prefill
from sglang_gemma4.kernels.attention import few_query_attention as few
from sglang_gemma4.kernels.attention import prefill_attention as prompts
from sglang_gemma4.kernels.kv_cache.formats import FORMATS, quantise_reference
from sglang_gemma4.kernels.kv_cache.store import store
from sglang_gemma4.kernels.norms.qkv_norm_rope import qkv_norm_rope
from tests.gpu.test_kernels import LAYERS

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
KINDS = {name: each.dtype for name, each in FORMATS.items()}
if torch.cuda.is_available():
    KINDS = {name: each.dtype for name, each in FORMATS.items() if torch.cuda.get_device_capability() >= each.least_capability}
every_format = pytest.mark.parametrize("dtype", KINDS.values(), ids=list(KINDS))
every_layer = pytest.mark.parametrize(("heads", "kv_heads", "dim", "window"), LAYERS)
BF16 = torch.bfloat16
TOLERANCE = 2e-2


def cache(slots: int, kv_heads: int, dim: int, dtype: torch.dtype | None) -> dict[str, Any]:
    """Keys and values of every slot; None: in bfloat16, without scales."""
    rows = [torch.randn(slots, kv_heads, dim, device="cuda") for _ in range(2)]
    rows[0][..., 3] *= 4
    if dtype is None:
        return {"k_buffer": rows[0].to(BF16), "v_buffer": rows[1].to(BF16)}
    (k, k_scales), (v, v_scales) = (quantise_reference(each.to(BF16), dtype) for each in rows)
    return {"k_buffer": k, "v_buffer": v, "k_scales": k_scales, "v_scales": v_scales}


@every_format
@every_layer
@pytest.mark.parametrize("tokens", [3, 2000])
def test_both_launches_write_what_the_reference_does(
    heads: int, kv_heads: int, dim: int, window: int, dtype: torch.dtype, tokens: int
) -> None:
    """A level may differ by one where a product lies between two, by the card's rounding of its division; few do."""
    torch.manual_seed(0)
    slots = torch.randperm(tokens + 3, device="cuda")[:tokens] + 1
    qkv = torch.randn(tokens, (heads + 2 * kv_heads) * dim, device="cuda").to(BF16)
    angles = torch.rand(64, dim // 2, device="cuda")
    where = torch.zeros(2, tokens + 4, kv_heads, dim, dtype=torch.int8, device="cuda").view(dtype)
    scales = torch.full((2, tokens + 4, kv_heads), 99.0, device="cuda")
    weight = torch.ones(dim, device="cuda", dtype=BF16)
    given = (
        qkv,
        torch.arange(tokens, device="cuda") % 64,
        torch.cat([angles.cos(), angles.sin()], -1),
        weight,
        weight,
        heads,
        kv_heads,
        1e-6,
    )
    _, k, v = qkv_norm_rope(*given, where[0], where[1], slots, k_scales=scales[0], v_scales=scales[1])
    for number, rows in enumerate((k, v)):
        levels, worth = quantise_reference(rows, dtype)
        torch.testing.assert_close(scales[number][slots], worth, rtol=1e-6, atol=0)
        found = where[number].view(torch.int8)[slots].view(dtype).float()
        assert (found != levels.float()).sum() <= max(3, found.numel() // 1000)
        assert ((found - levels.float()).abs() <= (1.0 if dtype == torch.int8 else 32.0)).all()
    assert (scales[:, 0] == 99).all(), "slot 0 is not written"
    again, worth = torch.zeros_like(where.view(torch.int8)).view(dtype), torch.zeros_like(scales)
    store(k, v, again[0], again[1], worth[0], worth[1], slots)
    assert torch.equal(again.view(torch.int8)[:, slots], where.view(torch.int8)[:, slots])
    assert torch.equal(worth[:, slots], scales[:, slots])


@every_format
@every_layer
@pytest.mark.parametrize("queries", [1, 4])
def test_verify_and_decode(heads: int, kv_heads: int, dim: int, window: int, dtype: torch.dtype, queries: int) -> None:
    torch.manual_seed(1)
    lengths = [min(length, window + 1) if window >= 0 else length for length in (5000, 129, 1, 64)]
    total, requests = sum(lengths), len(lengths)
    slots = torch.randperm(total + requests * queries, device="cuda")
    indptr = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32, device="cuda")
    pool = cache(slots.numel(), kv_heads, dim, dtype)
    q = torch.randn(requests * queries, heads, dim, device="cuda").to(BF16)
    given: dict[str, Any] = {**pool, "queries": queries, "window": window, "new_slots": slots[total:].contiguous() if queries > 1 else None}
    expected = few.few_query_attention_reference(q, kv_indptr=indptr, kv_indices=slots[:total], scale=dim**-0.5, **given)
    found = few.few_query_attention(q, kv_indptr=indptr, kv_indices=slots[:total], scale=dim**-0.5, out=torch.empty_like(q), **given)
    torch.testing.assert_close(found.float(), expected.float(), atol=TOLERANCE, rtol=TOLERANCE)


@every_format
@every_layer
def test_prefill(heads: int, kv_heads: int, dim: int, window: int, dtype: torch.dtype) -> None:
    torch.manual_seed(2)
    prefix, tokens = 700, 500
    slots = torch.randperm(prefix + tokens, device="cuda")
    pool = cache(slots.numel(), kv_heads, dim, dtype)
    starts = torch.tensor([0, tokens], device="cuda"), torch.tensor([0, prefix], device="cuda")
    q = torch.randn(tokens, heads, dim, device="cuda").to(BF16)
    given = (q, pool["k_buffer"], pool["v_buffer"], pool["k_buffer"], pool["v_buffer"], *starts, slots[:prefix].contiguous(), dim**-0.5)
    beside = {"window": window, "new_slots": slots[prefix:].contiguous(), "k_scales": pool["k_scales"], "v_scales": pool["v_scales"]}
    expected = prompts.prefill_attention_reference(*given, **beside)
    found = prompts.prefill_attention(*given, out=torch.empty_like(q), longest=tokens, **beside)
    torch.testing.assert_close(found.float(), expected.float(), atol=TOLERANCE, rtol=TOLERANCE)


@every_format
@every_layer
def test_flash_attention(heads: int, kv_heads: int, dim: int, window: int, dtype: torch.dtype) -> None:
    """Behind a prefix and without, over keys put in order."""
    if problem := flash_prefill.reason_against():
        pytest.skip(problem)
    if dim not in flash_prefill.HEAD_DIMS:
        pytest.skip(f"no layer of this package has heads of {dim} there")
    from sglang.kernels.ops.attention.flash_attention_v4 import flash_attn_varlen_func

    torch.manual_seed(2)
    tokens, prefixes = [500, 300], [700, 0]
    new, cached = sum(tokens), sum(prefixes)
    slots = torch.randperm(new + cached, device="cuda")
    pool = cache(slots.numel(), kv_heads, dim, dtype)
    buffers = pool["k_buffer"], pool["v_buffer"]
    starts = [torch.tensor([0, *each], device="cuda").cumsum(0).int() for each in (tokens, prefixes)]
    q = torch.randn(new, heads, dim, device="cuda").to(BF16)
    places = (*starts, slots[:cached].contiguous(), dim**-0.5)
    beside = {"new_slots": slots[cached:].contiguous(), "k_scales": pool["k_scales"], "v_scales": pool["v_scales"]}
    expected = prompts.prefill_attention_reference(q, *buffers, *buffers, *places, window=window, **beside)
    like, found = q[:, :1].expand(-1, kv_heads, -1), torch.empty_like(q)
    flash = flash_prefill.FlashPrefill(flash_attn_varlen_func)
    flash(q, like, like, *buffers, *places, out=found, longest=max(tokens), window=window, **beside)
    torch.testing.assert_close(found.float(), expected.float(), atol=TOLERANCE, rtol=TOLERANCE)


def microseconds(work: Callable[[], Any], times: int = 20) -> float:
    for _ in range(3):
        work()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(times):
        work()
    end.record()
    end.synchronize()
    taken: float = begin.elapsed_time(end)
    return taken * 1000 / times


@pytest.mark.parametrize("keys", [1024, 32768, 65536])
@pytest.mark.parametrize("queries", [1, 4])
def test_time_of_full_attention_beside_bfloat16(queries: int, keys: int) -> None:
    """26B-A4B's full layers at batch 16; prints microseconds (``pytest -s``). At 65,536 keys, bytes decide."""
    heads, kv_heads, dim, requests = 16, 2, 512, 16
    total = requests * keys
    slots = torch.randperm(total + requests * queries, device="cuda")
    indptr = torch.arange(requests + 1, device="cuda", dtype=torch.int32) * keys
    q = torch.randn(requests * queries, heads, dim, device="cuda").to(BF16)
    out, found = torch.empty_like(q), {}
    for name, dtype in {"bfloat16": None, **KINDS}.items():
        memory = torch.zeros(2, slots.numel(), kv_heads, dim, dtype=BF16 if dtype is None else torch.int8, device="cuda")
        made = {"k_buffer": memory[0], "v_buffer": memory[1]}
        if dtype is not None:
            ones = torch.ones(slots.numel(), kv_heads, device="cuda")
            made = {"k_buffer": memory[0].view(dtype), "v_buffer": memory[1].view(dtype), "k_scales": ones, "v_scales": ones}
        given = {**made, "queries": queries, "new_slots": slots[total:].contiguous() if queries > 1 else None}
        call = functools.partial(few.few_query_attention, q, kv_indptr=indptr, kv_indices=slots, scale=1.0, out=out, **given)
        found[name] = microseconds(call)
        del memory, made, given, call
    print(f"\n{queries} queries, {requests} x {keys} keys: {', '.join(f'{name} {value:.0f} us' for name, value in found.items())}")
    if keys == 65536:
        assert found["int8_per_token_head"] < found["bfloat16"]
