"""A decoder layer's norms, tails, gates and rotations compiled on a card, at Gemma 4's real sizes, outputs poisoned."""

from typing import Any

import pytest
import torch

from sglang_gemma4.kernels.dense.gated_embedding import gated_embedding, gated_embedding_reference
from sglang_gemma4.kernels.norms.layer_tail import dual_tail, dual_tail_reference, tail, tail_reference
from sglang_gemma4.kernels.norms.qkv_norm_rope import TokenTiles, qkv_norm_rope, qkv_norm_rope_reference, write_reference
from sglang_gemma4.kernels.norms.row_parts import RowTiles
from sglang_gemma4.kernels.norms.triple_rmsnorm import triple_rmsnorm, triple_rmsnorm_reference

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

POISON = 1e4
DTYPES = [torch.bfloat16, torch.float16, torch.float32]
TOLERANCE = {torch.bfloat16: 2e-2, torch.float16: 3e-3, torch.float32: 2e-5}
FLIPPED = 0.01
"""Share of elements that may differ at all in bfloat16: a sum taken in another order can turn a rounding."""
WIDTHS = [2816, 1536, 2560, 5376, 1024, 256]
ROWS = [1, 4, 80, 320]
TILES = [RowTiles(1, 256, 1), RowTiles(1, 512, 2), RowTiles(1, 1024, 4), RowTiles(4, 1024, 4, 2), RowTiles(3, 1024, 4, 3)]


@pytest.fixture(autouse=True)
def poisoned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a kernel leaves unwritten is found: ``torch.empty`` is filled."""
    empty, empty_like = torch.empty, torch.empty_like
    monkeypatch.setattr(torch, "empty", lambda *args, **options: empty(*args, **options).fill_(POISON))
    monkeypatch.setattr(torch, "empty_like", lambda *args, **options: empty_like(*args, **options).fill_(POISON))


def rand(*shape: int, dtype: torch.dtype, around: float = 0.0) -> torch.Tensor:
    return (around + torch.randn(*shape, device="cuda")).to(dtype)


def agree(found: Any, expected: Any, dtype: torch.dtype) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == dtype
        torch.testing.assert_close(one.float(), other.float(), atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
        if dtype is torch.bfloat16 and other.numel():
            large = other.abs() > 1e-3  # smaller gelus are cancellation in the reference: 1 + tanh of a few
            assert ((one != other) & large).float().mean() <= FLIPPED, "rounded in other places than the reference"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("width", WIDTHS)
def test_norms_and_tails(width: int, rows: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    h, residual, other = (rand(rows, width, dtype=dtype) for _ in range(3))
    weights = [rand(width, dtype=dtype, around=1.0) for _ in range(4)]
    scalar = torch.tensor([0.37], dtype=dtype, device="cuda")
    for given in (weights, weights[:2]):
        agree(triple_rmsnorm(h, residual.clone(), *given), triple_rmsnorm_reference(h, residual, *given), dtype)
    three, eps = (weights[0], weights[1], weights[2]), (1e-6, 1e-6, 1e-6)
    agree(
        dual_tail(h, other, residual, three, scalar, eps, weights[3]),
        dual_tail_reference(h, other, residual, three, scalar, eps, weights[3]),
        dtype,
    )
    for rounded in (True, False):
        given_tail = (h, residual, weights[0], 1e-6, scalar, weights[3], 1e-6, rounded)
        agree(tail(*given_tail), tail_reference(*given_tail), dtype)
    assert tail(h, residual, weights[0], 1e-6)[1] is None


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "width"), [(1025, 2816), (333, 1000), (8192, 2816)])
@pytest.mark.parametrize("tiles", TILES, ids=str)
def test_norms_and_tails_of_many_rows(rows: int, width: int, tiles: RowTiles, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    h, residual, other = (rand(rows, width, dtype=dtype) for _ in range(3))
    weights = [rand(width, dtype=dtype, around=1.0) for _ in range(4)]
    scalar = torch.tensor([0.37], dtype=dtype, device="cuda")
    for given in (weights, weights[:2]):
        agree(triple_rmsnorm(h, residual.clone(), *given, tiles=tiles), triple_rmsnorm_reference(h, residual, *given), dtype)
    three, eps = (weights[0], weights[1], weights[2]), (1e-6, 1e-6, 1e-6)
    dual = (h, other, residual, three, scalar, eps, weights[3])
    agree(dual_tail(*dual, tiles=tiles), dual_tail_reference(*dual), dtype)
    for rounded in (True, False):
        given_tail = (h, residual, weights[0], 1e-6, scalar, weights[3], 1e-6, rounded)
        agree(tail(*given_tail, tiles), tail_reference(*given_tail), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [*ROWS, 4097])
def test_gated_embedding(rows: int, dtype: torch.dtype) -> None:
    embedding = rand(rows, 35, 256, dtype=dtype)[:, 17]
    gate = 3 * rand(rows, 256, dtype=dtype)
    agree([gated_embedding(gate, embedding)], [gated_embedding_reference(gate, embedding)], dtype)


HEADS = [(16, 8, 256), (16, 2, 512), (8, 1, 256), (8, 1, 512), (32, 16, 256), (32, 4, 512), (4, 0, 256), (8, 0, 512)]


def rotation(dim: int) -> torch.Tensor:
    angles = torch.rand(3000, dim // 2, device="cuda") * 7
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tokens", [*ROWS, 1000])
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), HEADS)
def test_qkv_norm_rope(tokens: int, heads: int, kv_heads: int, dim: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    qkv = rand(tokens, (heads + 2 * max(1, kv_heads)) * dim, dtype=dtype)
    weights = [rand(dim, dtype=dtype, around=1.0) for _ in range(2)]
    given = (qkv, torch.randint(0, 3000, (tokens,), device="cuda"), rotation(dim), *weights, heads, kv_heads)
    agree(qkv_norm_rope(*given), qkv_norm_rope_reference(*given), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tokens", [*ROWS, 1000])
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [heads for heads in HEADS if heads[1]])
def test_qkv_norm_rope_writes_the_pool(tokens: int, heads: int, kv_heads: int, dim: int, dtype: torch.dtype) -> None:
    """As SGLang's own write does, every bit of both buffers: padding tokens leave slot 0 as it is."""
    from sglang.kernels.ops.kvcache.kvcache import store_cache

    torch.manual_seed(0)
    qkv = rand(tokens, (heads + 2 * kv_heads) * dim, dtype=dtype)
    one, two = (rand(dim, dtype=dtype, around=1.0) for _ in range(2))
    given = (qkv, torch.randint(0, 3000, (tokens,), device="cuda"), rotation(dim), one, two, heads, kv_heads, 1e-6)
    slots = 1 + torch.randperm(2000, device="cuda")[:tokens]
    slots[tokens // 2 :: 7] = 0
    ours = [torch.empty(2001, kv_heads, dim, dtype=dtype, device="cuda") for _ in range(2)]
    theirs, reference = [one.clone() for one in ours], [one.clone() for one in ours]
    found = qkv_norm_rope(*given, ours[0], ours[1], slots)
    for one, other in zip(found, qkv_norm_rope(*given), strict=True):
        assert torch.equal(one, other)
    write_reference(found[1], found[2], reference[0], reference[1], slots)
    store_cache(found[1].flatten(1), found[2].flatten(1), theirs[0].flatten(1), theirs[1].flatten(1), slots)
    for one, other, third in zip(ours, theirs, reference, strict=True):
        assert torch.equal(one, other)
        assert torch.equal(one, third)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tiles", [TokenTiles(1, 2), TokenTiles(1, 4), TokenTiles(1, 8), TokenTiles(4, 4), TokenTiles(3, 8)], ids=str)
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(16, 8, 256), (16, 2, 512), (8, 1, 256), (4, 0, 256), (32, 4, 512)])
def test_qkv_norm_rope_of_many_tokens(heads: int, kv_heads: int, dim: int, tiles: TokenTiles, dtype: torch.dtype) -> None:
    """What is returned as the reference, what is written as returned; padding tokens leave slot 0 as it is."""
    torch.manual_seed(0)
    tokens = 1025
    qkv = rand(tokens, (heads + 2 * max(1, kv_heads)) * dim, dtype=dtype)
    one, two = (rand(dim, dtype=dtype, around=1.0) for _ in range(2))
    given = (qkv, torch.randint(0, 3000, (tokens,), device="cuda"), rotation(dim), one, two, heads, kv_heads, 1e-6)
    found = qkv_norm_rope(*given, tiles=tiles)
    agree(found, qkv_norm_rope_reference(*given), dtype)
    if kv_heads:
        slots = 1 + torch.randperm(2000, device="cuda")[:tokens]
        slots[tokens // 2 :: 7] = 0
        ours = [torch.empty(2001, kv_heads, dim, dtype=dtype, device="cuda") for _ in range(2)]
        reference = [one.clone() for one in ours]
        for one, other in zip(found, qkv_norm_rope(*given, ours[0], ours[1], slots, tiles), strict=True):
            assert torch.equal(one, other)
        write_reference(found[1], found[2], reference[0], reference[1], slots)
        for one, other in zip(ours, reference, strict=True):
            assert torch.equal(one, other)


@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(16, 8, 256), (16, 2, 512)])
def test_beside_sglang_s_kernels(heads: int, kv_heads: int, dim: int) -> None:
    """In bfloat16 next to no element differs from what stock computes: norms, in-place rotation, fused add and norm, fused tail."""
    from sglang.kernels.ops.attention.rope import apply_rope_with_cos_sin_cache_inplace
    from sglang.kernels.ops.layernorm.gemma4_fused_ops import gemma_dual_rmsnorm_residual_scalar, gemma_qkv_rmsnorm
    from sglang.srt.layers.layernorm import fused_add_rmsnorm, rmsnorm

    torch.manual_seed(0)
    dtype, tokens, width = torch.bfloat16, 64, 2816
    qkv = rand(tokens, (heads + 2 * kv_heads) * dim, dtype=dtype)
    q_weight, k_weight = (rand(dim, dtype=dtype, around=1.0) for _ in range(2))
    positions, cos_sin = torch.randint(0, 3000, (tokens,), device="cuda"), rotation(dim)
    found = qkv_norm_rope(qkv, positions, cos_sin, q_weight, k_weight, heads, kv_heads)
    q, k, v = qkv.clone().split([heads * dim, kv_heads * dim, kv_heads * dim], dim=-1)
    gemma_qkv_rmsnorm(q, k, v, q_weight, k_weight, heads, kv_heads, dim, 1e-6)
    k = k.contiguous()
    apply_rope_with_cos_sin_cache_inplace(
        positions=positions, q=q.view(tokens, -1, dim), k=k.view(tokens, -1, dim), cos_sin_cache=cos_sin, is_neox=True
    )
    agree(found, [q.view(tokens, -1, dim), k.view(tokens, -1, dim), v.view(tokens, -1, dim)], dtype)

    h, residual, other = (rand(tokens, width, dtype=dtype) for _ in range(3))
    weights = [rand(width, dtype=dtype, around=1.0) for _ in range(4)]
    ours = triple_rmsnorm(h, residual.clone(), *weights)
    dense, written = rmsnorm(h, weights[0], 1e-6), residual.clone()
    fused_add_rmsnorm(dense, written, weights[1], 1e-6)
    agree(ours, [dense, written, rmsnorm(written, weights[2], 1e-6), rmsnorm(written, weights[3], 1e-6)], dtype)

    scalar = torch.tensor([0.37], dtype=dtype, device="cuda")
    out = gemma_dual_rmsnorm_residual_scalar(h, weights[0], other, weights[1], weights[2], residual, scalar)
    three = (weights[0], weights[1], weights[2])
    agree(
        dual_tail(h, other, residual, three, scalar, (1e-6, 1e-6, 1e-6), weights[3]),
        [out, rmsnorm(out, weights[3], 1e-6)],
        dtype,
    )
