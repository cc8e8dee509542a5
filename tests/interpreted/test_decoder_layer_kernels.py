"""Norms, tails, gates and rotations of a decoder layer: kernels under Triton's interpreter against their references, outputs poisoned."""

from typing import Any

import pytest
import torch

from sglang_gemma4.kernels.dense.gated_embedding import gated_embedding, gated_embedding_reference
from sglang_gemma4.kernels.norms.layer_tail import dual_tail, dual_tail_reference, tail, tail_reference
from sglang_gemma4.kernels.norms.qkv_norm_rope import TokenTiles, qkv_norm_rope, qkv_norm_rope_reference, write_reference
from sglang_gemma4.kernels.norms.row_parts import RowTiles
from sglang_gemma4.kernels.norms.triple_rmsnorm import triple_rmsnorm, triple_rmsnorm_reference

POISON = 1e4
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3}
DTYPES = [torch.float32, torch.float16]
SIZES = [(1, 128), (3, 100), (5, 1), (2, 2816)]
TILED = [
    (5, 2816, RowTiles(rows=1, block=256, warps=1)),
    (5, 2816, RowTiles(rows=2, block=1024, warps=4, stages=2)),
    (7, 97, RowTiles(rows=3, block=32, warps=1)),
    (7, 97, RowTiles(rows=8, block=128, warps=2, stages=3)),
    (4, 1, RowTiles(rows=2, block=16, warps=1)),
    (9, 128, RowTiles(rows=4, block=32, warps=1, stages=2)),
]
"""Rows, width and the layout of the kernels for many rows: rows that fill no program, widths that fill no tile."""


@pytest.fixture(autouse=True)
def poisoned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a kernel leaves unwritten is found: ``torch.empty`` is filled."""
    empty, empty_like = torch.empty, torch.empty_like
    monkeypatch.setattr(torch, "empty", lambda *args, **options: empty(*args, **options).fill_(POISON))
    monkeypatch.setattr(torch, "empty_like", lambda *args, **options: empty_like(*args, **options).fill_(POISON))


def strided(rows: int, width: int, dtype: torch.dtype) -> torch.Tensor:
    """Random rows that are not adjacent."""
    return (torch.randn(rows, width + 3) * 3).to(dtype)[:, :width]


def weight(width: int, dtype: torch.dtype) -> torch.Tensor:
    return (1 + torch.randn(width)).to(dtype)


def agree(found: Any, expected: Any, dtype: torch.dtype) -> None:
    for one, other in zip(found, expected, strict=True):
        if other is None:
            assert one is None
        else:
            assert one.dtype == dtype
            torch.testing.assert_close(one, other, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "width"), SIZES)
@pytest.mark.parametrize("triple", [True, False])
def test_triple_rmsnorm(rows: int, width: int, triple: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(rows)
    h, residual = strided(rows, width, dtype), strided(rows, width, dtype)
    weights = [weight(width, dtype) for _ in range(4 if triple else 2)]
    eps: dict[str, Any] = {"post_eps": 1e-6, "dense_eps": 1e-5, "router_eps": 1e-4, "expert_eps": 1e-3}
    expected = triple_rmsnorm_reference(h, residual, *weights, **eps)
    found = triple_rmsnorm(h, residual, *weights, **eps)
    assert found[1] is residual
    agree(found, expected, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "width"), SIZES)
@pytest.mark.parametrize("followed", [True, False])
def test_dual_tail(rows: int, width: int, followed: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(rows)
    dense, experts, residual = (strided(rows, width, dtype) for _ in range(3))
    first, second, third, following = (weight(width, dtype) for _ in range(4))
    given = (dense, experts, residual, (first, second, third), torch.tensor([0.37], dtype=dtype), (1e-6, 1e-5, 1e-4))
    after = {"next_weight": following if followed else None, "next_eps": 1e-3}
    agree(dual_tail(*given, **after), dual_tail_reference(*given, **after), dtype)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "width"), SIZES)
@pytest.mark.parametrize("followed", [True, False])
@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("rounded", [True, False])
def test_tail(rows: int, width: int, followed: bool, scaled: bool, rounded: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(rows)
    x, residual = strided(rows, width, dtype), strided(rows, width, dtype)
    given = (x, residual, weight(width, dtype), 1e-5, torch.tensor([0.37], dtype=dtype) if scaled else None)
    after: dict[str, Any] = {"next_weight": weight(width, dtype) if followed else None, "next_eps": 1e-3, "rounded": rounded}
    agree(tail(*given, **after), tail_reference(*given, **after), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "width", "tiles"), TILED)
@pytest.mark.parametrize("triple", [True, False])
def test_triple_rmsnorm_of_many_rows(rows: int, width: int, tiles: RowTiles, triple: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(rows)
    h, memory = strided(rows, width, dtype), strided(rows, width + 5, dtype)
    residual, beside = memory[:, :width], memory[:, width:].clone()
    weights = [weight(width, dtype) for _ in range(4 if triple else 2)]
    eps: dict[str, Any] = {"post_eps": 1e-6, "dense_eps": 1e-5, "router_eps": 1e-4, "expert_eps": 1e-3}
    expected = triple_rmsnorm_reference(h, residual, *weights, **eps)
    found = triple_rmsnorm(h, residual, *weights, **eps, tiles=tiles)
    assert found[1] is residual
    agree(found, expected, dtype)
    assert torch.equal(memory[:, width:], beside), "what lies between the residual's rows is left as it is"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "width", "tiles"), TILED)
@pytest.mark.parametrize("followed", [True, False])
def test_tails_of_many_rows(rows: int, width: int, tiles: RowTiles, followed: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(rows)
    dense, experts, residual = (strided(rows, width, dtype) for _ in range(3))
    first, second, third, following = (weight(width, dtype) for _ in range(4))
    scalar = torch.tensor([0.37], dtype=dtype)
    after: dict[str, Any] = {"next_weight": following if followed else None, "next_eps": 1e-3}
    given = (dense, experts, residual, (first, second, third), scalar, (1e-6, 1e-5, 1e-4))
    agree(dual_tail(*given, **after, tiles=tiles), dual_tail_reference(*given, **after), dtype)
    for rounded in (True, False):
        one = (dense, residual, first, 1e-5, scalar if followed else None)
        agree(tail(*one, **after, rounded=rounded, tiles=tiles), tail_reference(*one, **after, rounded=rounded), dtype)


def test_rounding_is_where_separate_kernels_round() -> None:
    """In float16 exactly: a value that two roundings change, and one does not."""
    x = torch.tensor([[1.0, 1.0]], dtype=torch.float16)
    residual = torch.tensor([[2048.0, 2048.0]], dtype=torch.float16)  # the next float16 is 2050
    scalar = torch.tensor([1.5], dtype=torch.float16)
    weights = torch.tensor([0.9, 1.5], dtype=torch.float16)
    apart, _ = tail(x, residual, weights, 0.0, scalar, rounded=True)
    at_once, _ = tail(x, residual, weights, 0.0, scalar)
    assert apart.tolist() == [[3072.0, 3076.0]]  # 1.5 · 2048, 1.5 · 2050 between two float16
    assert at_once.tolist() == [[3074.0, 3074.0]]  # 1.5 · 2048.9, 1.5 · 2049.5


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "width", "layers"), [(1, 16, 1), (7, 100, 3), (5, 256, 35)])
def test_gated_embedding(rows: int, width: int, layers: int, dtype: torch.dtype) -> None:
    torch.manual_seed(rows)
    embedding = torch.randn(rows, layers, width).to(dtype)[:, layers // 2]
    gate = strided(rows, width, dtype) * 2
    agree([gated_embedding(gate, embedding)], [gated_embedding_reference(gate, embedding)], dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(1, 1, 16), (4, 2, 32), (8, 1, 256), (3, 0, 32), (16, 2, 512)])
@pytest.mark.parametrize("tokens", [1, 5])
@pytest.mark.parametrize("small", [True, False])
def test_qkv_norm_rope(
    tokens: int, heads: int, kv_heads: int, dim: int, small: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not small:
        monkeypatch.setattr("sglang_gemma4.kernels.norms.qkv_norm_rope.HEADS_OF_SMALL_STEPS", 0)
    torch.manual_seed(tokens)
    qkv = strided(tokens, (heads + 2 * max(1, kv_heads)) * dim, dtype)
    untouched = qkv.clone()
    angles = torch.rand(50, dim // 2) * 7
    cos_sin = torch.cat([angles.cos(), angles.sin()], dim=-1)
    given = (qkv, torch.randint(0, 50, (tokens,)), cos_sin, weight(dim, dtype), weight(dim, dtype), heads, kv_heads, 1e-5)
    found = qkv_norm_rope(*given)
    agree(found, qkv_norm_rope_reference(*given), dtype)
    assert all(one.is_contiguous() for one in found)
    assert torch.equal(qkv, untouched)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(1, 1, 16), (4, 2, 32), (8, 1, 256), (5, 3, 64), (16, 2, 512)])
@pytest.mark.parametrize("tokens", [1, 7])
@pytest.mark.parametrize(("index", "small"), [(torch.int32, True), (torch.int64, False)])
def test_qkv_norm_rope_writes_the_pool(
    tokens: int,
    heads: int,
    kv_heads: int,
    dim: int,
    index: torch.dtype,
    small: bool,
    dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The rows it returns, at the slots named; padding to slot 0, negative slots and slots past the end leave no trace."""
    if not small:
        monkeypatch.setattr("sglang_gemma4.kernels.norms.qkv_norm_rope.HEADS_OF_SMALL_STEPS", 0)
    torch.manual_seed(tokens)
    given = (strided(tokens, (heads + 2 * kv_heads) * dim, dtype), *rotation(tokens, dim, dtype), heads, kv_heads, 1e-5)
    caches, (k_cache, v_cache) = pools(12, kv_heads, dim, dtype)
    slots = torch.tensor([11, 0, 3, -1, 0, 12, 1], dtype=index)[:tokens]
    found = qkv_norm_rope(*given, k_cache, v_cache, slots)
    for one, other in zip(found, qkv_norm_rope(*given), strict=True):
        assert torch.equal(one, other), "what is returned does not depend on what is written"
        assert one.is_contiguous()
    expected, views = pools(12, kv_heads, dim, dtype)
    write_reference(found[1], found[2], *views, slots)
    assert all(torch.equal(one, other) for one, other in zip(caches, expected, strict=True)), "between slots and heads too"
    assert [slot for slot in range(12) if (k_cache[slot] != POISON).any()] == sorted({11, 3, 1} & set(slots.tolist()))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(1, 1, 16), (4, 2, 32), (8, 1, 256), (2, 0, 32), (16, 2, 512)])
@pytest.mark.parametrize(("tokens", "tiles"), [(1, TokenTiles(2, 1)), (7, TokenTiles(1, 4)), (7, TokenTiles(3, 2))])
@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_qkv_norm_rope_of_many_tokens(
    tokens: int, heads: int, kv_heads: int, dim: int, tiles: TokenTiles, index: torch.dtype, dtype: torch.dtype
) -> None:
    """What is returned, and what is written into the pool."""
    torch.manual_seed(tokens)
    qkv = strided(tokens, (heads + 2 * max(1, kv_heads)) * dim, dtype)
    untouched = qkv.clone()
    positions, cos_sin, one, two = rotation(tokens, dim, dtype)
    given = (qkv, positions.to(index), cos_sin, one, two, heads, kv_heads, 1e-5)
    found = qkv_norm_rope(*given, tiles=tiles)
    agree(found, qkv_norm_rope_reference(*given), dtype)
    assert all(one.is_contiguous() for one in found)
    assert torch.equal(qkv, untouched)
    if kv_heads:
        caches, (k_cache, v_cache) = pools(12, kv_heads, dim, dtype)
        slots = torch.tensor([11, 0, 3, -1, 0, 12, 1], dtype=index)[:tokens]
        for one, other in zip(found, qkv_norm_rope(*given, k_cache, v_cache, slots, tiles), strict=True):
            assert torch.equal(one, other), "what is returned does not depend on what is written"
        expected, views = pools(12, kv_heads, dim, dtype)
        write_reference(found[1], found[2], *views, slots)
        assert all(torch.equal(one, other) for one, other in zip(caches, expected, strict=True)), "between slots and heads too"


def rotation(tokens: int, dim: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Positions, cosines and sines, the weights of queries and keys."""
    angles = torch.rand(50, dim // 2) * 7
    return torch.randint(0, 50, (tokens,)), torch.cat([angles.cos(), angles.sin()], dim=-1), weight(dim, dtype), weight(dim, dtype)


def pools(slots: int, kv_heads: int, dim: int, dtype: torch.dtype) -> tuple[list[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
    """Poisoned memory, and keys and values in it whose heads and slots lie differently far apart."""
    caches = [torch.empty(slots, kv_heads + 1, dim + 8, dtype=dtype), torch.empty(slots, kv_heads, dim + 16, dtype=dtype)]
    return caches, (caches[0][:, 1:, :dim], caches[1][:, :, 16:])


def test_a_slot_past_two_to_the_31_elements() -> None:
    memory = torch.zeros((1 << 31) + 32, dtype=torch.float16)  # of which only the pages that are touched exist
    caches = [memory.as_strided((3, 1, 16), (1 << 30, 16, 1), offset) for offset in (0, 16)]
    given = (torch.randn(1, 48).half(), *rotation(1, 16, torch.float16), 1, 1, 1e-6)
    for tiles in (None, TokenTiles(1, 1)):
        memory[-32:] = 0
        _, k, v = qkv_norm_rope(*given, caches[0], caches[1], torch.tensor([2], dtype=torch.int32), tiles)
        assert torch.equal(memory[-32:], torch.cat([k, v]).flatten())
    assert not memory[:32].any()


def test_no_rows_are_no_work() -> None:
    empty, ones = torch.zeros(0, 32), torch.ones(32)
    assert triple_rmsnorm(empty, empty, ones, ones)[0].shape == (0, 32)
    assert tail(empty, empty, ones, 1e-6, next_weight=ones)[0].shape == (0, 32)
    assert gated_embedding(empty, empty).shape == (0, 32)
    assert qkv_norm_rope(empty, torch.zeros(0, dtype=torch.int64), torch.ones(4, 16), ones[:16], ones[:16], 2, 0)[0].shape == (0, 2, 16)


X, W = torch.zeros(2, 32), torch.ones(32)
POOL = torch.zeros(4, 1, 32)


def written(kv_heads: int = 1, **change: Any) -> None:
    where = {"k_cache": POOL, "v_cache": POOL.clone(), "slots": torch.zeros(2, dtype=torch.int64), **change}
    qkv_norm_rope(torch.zeros(2, 96), torch.zeros(2, dtype=torch.int64), W[None], W, W, 1, kv_heads, **where)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: triple_rmsnorm(X.double(), X.double(), W, W), "of torch.float64"),
        (lambda: triple_rmsnorm(X, X.half(), W, W), "residual is"),
        (lambda: triple_rmsnorm(X[:, ::2], X[:, ::2], W[:16], W[:16]), "matrices with contiguous rows"),
        (lambda: triple_rmsnorm(X, X, W, W[:16]), "the dense weight is"),
        (lambda: triple_rmsnorm(X, X, W, W, W), "both or none"),
        (lambda: tail(X, X[:1], W, 1e-6), "residual is"),
        (lambda: tail(X, X, W, 1e-6, torch.ones(2)), "the scalar has 2 elements"),
        (lambda: dual_tail(X, X, X[:1], (W, W, W), W[:1], (1e-6, 1e-6, 1e-6)), "residual is"),
        (lambda: gated_embedding(X, X[:, :16]), "one shape is supported"),
        (lambda: qkv_norm_rope(X, torch.zeros(3, dtype=torch.int64), W[None], W, W, 1, 0), "one integer for each of 2 tokens"),
        (lambda: qkv_norm_rope(X, torch.zeros(2, dtype=torch.int64), W[None], W, W, 1, 1), r"1 \+ 2 \* 1 heads of 32"),
        (lambda: qkv_norm_rope(X, torch.zeros(2, dtype=torch.int64), W[None], W[:24], W[:24], 1, 0), "one power of two"),
        (lambda: qkv_norm_rope(X, torch.zeros(2, dtype=torch.int64), W[None, :16], W, W, 1, 0), r"\[positions, 32\] floats"),
        (lambda: written(k_cache=None), "or not at all"),
        (lambda: written(slots=None), "or not at all"),
        (lambda: written(kv_heads=0), "no keys and values to write"),
        (lambda: written(k_cache=POOL.half()), "k_cache is torch.float16, qkv torch.float32"),
        (lambda: written(v_cache=POOL.half()), "v_cache is torch.float16, qkv torch.float32"),
        (lambda: written(v_cache=POOL[:3]), "v_cache is .*; 4 slots of 1 heads of 32"),
        (lambda: written(k_cache=POOL[:, :, :16]), "k_cache is .*; 4 slots of 1 heads of 32"),
        (lambda: written(k_cache=POOL.flatten(1)), "k_cache is .*; 4 slots of 1 heads of 32"),
        (lambda: written(v_cache=torch.zeros(4, 1, 64)[:, :, ::2]), "v_cache is .* with strides .* adjacent elements"),
        (lambda: written(slots=torch.zeros(3, dtype=torch.int64)), "one integer for each of 2 tokens"),
        (lambda: written(slots=torch.zeros(2)), "torch.float32; one integer"),
        (lambda: written(slots=torch.zeros(4, dtype=torch.int32)[::2]), "adjacent, is supported"),
    ],
)
def test_what_they_do_not_take_is_named(call: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        call()
