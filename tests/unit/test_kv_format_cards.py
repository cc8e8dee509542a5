"""Kernels over a quantised KV cache, compiled for cards that are not there: they compile, and fit the card's shared memory."""

import pytest
import torch

from sglang_gemma4.kernels.attention import few_query_attention, limits, prefill_attention
from sglang_gemma4.kernels.attention.key_rows import key_rows
from sglang_gemma4.kernels.attention.tiles import KeyTile, key_tile
from sglang_gemma4.kernels.card import Card
from sglang_gemma4.kernels.kv_cache.formats import FORMATS
from sglang_gemma4.kernels.kv_cache.store import store
from sglang_gemma4.kernels.norms.qkv_norm_rope import qkv_norm_rope
from tests.unit.test_card_memory import CARDS, FULL, KIB, SLIDING, SLOTS, empty, indptr, laid_out  # noqa: F401 - the last is a fixture

FP8 = torch.float8_e4m3fn
CASES = [(name, kind.dtype) for name, card in CARDS.items() for kind in FORMATS.values() if card.capability >= 89 or kind.dtype != FP8]
CASES += [("A100", torch.float8_e5m2), ("H200", torch.float8_e5m2)]
"""Converting e4m3 begins with Ada: before it the server is refused (``diagnostics.kv_format_limits``)."""
every_card = pytest.mark.parametrize(("laid_out", "dtype"), CASES, indirect=["laid_out"], ids=[f"{name}-{dtype}" for name, dtype in CASES])
layers = pytest.mark.parametrize("layer", [SLIDING, FULL], ids=["sliding", "full"])


def scales(dtype: torch.dtype, kv_heads: int) -> dict[str, torch.Tensor]:
    made = empty(SLOTS, kv_heads, dtype=torch.float32)
    return {} if dtype == torch.float8_e5m2 else {"k_scales": made, "v_scales": made}


@every_card
@layers
def test_prefill(laid_out: Card, dtype: torch.dtype, layer: tuple[int, int, int, int]) -> None:  # noqa: F811
    heads, kv_heads, dim, window = layer
    q, buffer = empty(256, heads, dim), empty(SLOTS, kv_heads, dim, dtype=dtype)
    beside = scales(dtype, kv_heads)
    assert limits.reason_against_prefill(q, buffer, buffer, buffer, buffer, torch.empty_like(q), *beside.values(), levels=True) is None
    prefill_attention.prefill_attention(
        q, buffer, buffer, buffer, buffer, indptr(0, 256), indptr(0, 64), torch.arange(64), 1.0, out=torch.empty_like(q), longest=256,
        window=window, reach=torch.zeros(256, dtype=torch.int32), new_slots=torch.arange(256), **beside,
    )  # fmt: skip


@every_card
@pytest.mark.parametrize("queries", [1, 4])
@layers
def test_verify_and_decode(laid_out: Card, dtype: torch.dtype, layer: tuple[int, int, int, int], queries: int) -> None:  # noqa: F811
    heads, kv_heads, dim, window = layer
    q, buffer = empty(queries, heads, dim), empty(SLOTS, kv_heads, dim, dtype=dtype)
    beside = scales(dtype, kv_heads)
    reason = limits.reason_against_few_query(q, buffer, buffer, torch.empty_like(q), queries, None, None, *beside.values(), levels=True)
    assert reason is None
    few_query_attention.few_query_attention(
        q, buffer, buffer, indptr(0, 9), torch.arange(9), 1.0, out=torch.empty_like(q), queries=queries, window=window, parts=2,
        new_slots=torch.arange(queries) if queries > 1 else None, **beside,
    )  # fmt: skip


@pytest.mark.parametrize(("laid_out", "dtype"), [case for case in CASES if case[0] == "H200"], indirect=["laid_out"], ids=str)
@layers
def test_keys_in_order_for_flash_attention(laid_out: Card, dtype: torch.dtype, layer: tuple[int, int, int, int]) -> None:  # noqa: F811
    _, kv_heads, dim, _ = layer
    like, buffer = empty(256, kv_heads, dim), empty(SLOTS, kv_heads, dim, dtype=dtype)
    key_rows(
        like, like, buffer, buffer, indptr(0, 256), indptr(0, 64), torch.arange(64), new_slots=torch.arange(256), **scales(dtype, kv_heads)
    )


@pytest.mark.parametrize(("laid_out", "dtype"), [case for case in CASES if case[1] != torch.float8_e5m2], indirect=["laid_out"], ids=str)
@layers
def test_writes(laid_out: Card, dtype: torch.dtype, layer: tuple[int, int, int, int]) -> None:  # noqa: F811
    heads, kv_heads, dim, _ = layer
    buffer, slots = empty(SLOTS, kv_heads, dim, dtype=dtype), torch.zeros(2048, dtype=torch.int64)
    for tokens in (8, 2048):
        k = empty(tokens, kv_heads, dim)
        store(k, k, buffer, buffer, *scales(dtype, kv_heads).values(), slots[:tokens])  # type: ignore[call-arg]
        weight, angles = empty(dim), empty(64, dim, dtype=torch.float32)
        qkv = empty(tokens, (heads + 2 * kv_heads) * dim)
        qkv_norm_rope(
            qkv, slots[:tokens], angles, weight, weight, heads, kv_heads, 1e-6, buffer, buffer, slots[:tokens], **scales(dtype, kv_heads)
        )


@pytest.mark.parametrize(
    ("shared", "rows", "dim", "tile"),
    [
        (227 * KIB, 16, 512, KeyTile(32, 4, 3)),
        (227 * KIB, 16, 256, KeyTile(32, 4, 5)),
        (99 * KIB, 16, 256, KeyTile(32, 4, 3)),
        (99 * KIB, 32, 512, KeyTile(16, 4, 3)),
        (48 * KIB, 64, 512, None),
    ],
)
def test_tiles_count_both_kinds_of_elements(shared: int, rows: int, dim: int, tile: KeyTile | None) -> None:
    assert key_tile(rows, dim, dim, torch.bfloat16, Card(shared, holds=shared == 227 * KIB), torch.int8) == tile
