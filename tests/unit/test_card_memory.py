"""Tiles fit the shared memory of cards other than the H200 they were measured on: what Triton lays out for each is compared.

A kernel that asks for more fails at its launch, which for attention is the first prompt: the server would die on a card that stock serves.
"""

from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch

from sglang_gemma4.kernels import card
from sglang_gemma4.kernels.attention import few_query_attention, limits, prefill_attention
from sglang_gemma4.kernels.attention.tiles import KeyTile, PromptTile, key_tile, prompt_tile, smaller_than_measured
from sglang_gemma4.kernels.card import Card
from sglang_gemma4.kernels.dense import few_row_linear
from sglang_gemma4.kernels.dense.register_linear import warps_for
from sglang_gemma4.kernels.experts import (
    expert_routing,
    few_token_experts,
    gated_experts,
    grouped_experts,
    prefill_experts,
    register_experts,
)
from sglang_gemma4.kernels.heads import head_argmax
from sglang_gemma4.kernels.weights import CAPABILITY, FP8, Grouped, Scaled, Weight, scaled
from tests.harness.gpu_compiler import compiling_for, without_assembling

KIB = 1024


class Kind(NamedTuple):
    """A card."""

    capability: int
    card: Card


CARDS = {
    "A100": Kind(80, Card(163 * KIB, holds=False)),
    "L40S": Kind(89, Card(99 * KIB, holds=False)),
    "H200": Kind(90, Card(227 * KIB, holds=True)),
    "B200": Kind(100, Card(227 * KIB, holds=True)),
    "RTX PRO 6000": Kind(120, Card(99 * KIB, holds=False)),
}
SLIDING, FULL = (8, 1, 256, 511), (16, 2, 512, -1)
"""Query heads, KV heads, head_dim and window of E2B's sliding and 26B-A4B's full layers; no layer has more query heads a KV head."""
HIDDEN, EXPERTS, INNER, TOPK = 2816, 128, 704, 8
SLOTS = 4096


def empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype)


@pytest.fixture
def laid_out(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest):  # type: ignore[no-untyped-def]
    """A card's name; after the test, every kernel launched in it has been compiled for it and fits."""
    kind = CARDS[request.param]
    for module in (limits, few_query_attention, prefill_attention, head_argmax):
        monkeypatch.setattr(module, "card", lambda device: kind.card)
    shared: dict[str, int] = {}

    def see(name: str, kernel: object) -> None:
        shared[name] = max(shared.get(name, 0), kernel.metadata.shared)  # type: ignore[attr-defined]

    with without_assembling(), compiling_for(kind.capability, see, monkeypatch):
        yield kind.card
    assert shared, "nothing was launched"
    assert {name: taken for name, taken in shared.items() if taken > kind.card.shared} == {}


every_card = pytest.mark.parametrize("laid_out", CARDS, indirect=True)
cards_with_fp8 = pytest.mark.parametrize(
    "laid_out", [name for name, kind in CARDS.items() if divmod(kind.capability, 10) >= CAPABILITY], indirect=True
)


def indptr(*starts: int) -> torch.Tensor:
    return torch.tensor(starts, dtype=torch.int32)


@every_card
@pytest.mark.parametrize("layer", [SLIDING, FULL], ids=["sliding", "full"])
def test_prefill_attention(laid_out: Card, layer: tuple[int, int, int, int]) -> None:
    heads, kv_heads, dim, window = layer
    q, k, buffer = empty(256, heads, dim), empty(256, kv_heads, dim), empty(SLOTS, kv_heads, dim)
    reach = torch.zeros(256, dtype=torch.int32)
    assert limits.reason_against_prefill(q, k, k, buffer, buffer, torch.empty_like(q)) is None
    prefill_attention.prefill_attention(
        q, k, k, buffer, buffer, indptr(0, 256), indptr(0, 64), torch.arange(64), 1.0,
        out=torch.empty_like(q), longest=256, window=window, reach=reach,
    )  # fmt: skip
    if laid_out == CARDS["H200"].card:  # as in a graph
        prefill_attention.prefill_attention(
            q, k, k, buffer, buffer, indptr(0, 256), indptr(0, 64), torch.arange(64), 1.0,
            out=torch.empty_like(q), longest=256, window=window, tiles=torch.zeros(8, 2, dtype=torch.int32),
        )  # fmt: skip


@every_card
@pytest.mark.parametrize("queries", [8, 16])
@pytest.mark.parametrize("layer", [SLIDING, FULL], ids=["sliding", "full"])
def test_verify_and_decode_attention(laid_out: Card, layer: tuple[int, int, int, int], queries: int) -> None:
    heads, kv_heads, dim, window = layer
    q, new, buffer = empty(queries, heads, dim), empty(queries, kv_heads, dim), empty(SLOTS, kv_heads, dim)
    fresh = {"k_new": new, "v_new": new} if queries > 1 else {}
    reason = limits.reason_against_few_query(q, buffer, buffer, torch.empty_like(q), queries, *(fresh.values() or (None, None)))
    if reason is None:
        few_query_attention.few_query_attention(
            q, buffer, buffer, indptr(0, 9), torch.arange(9), 1.0, out=torch.empty_like(q), queries=queries, window=window, parts=2, **fresh
        )
        return
    # Queries of 128 rows of 512 alone would fill an A100's.
    assert (queries, dim, laid_out.holds) == (16, 512, False)
    assert f"16 query tokens of 8 heads of 512 in torch.bfloat16 fits the {laid_out.shared:,} bytes" in reason
    launched_elsewhere()


def launched_elsewhere() -> None:
    """Something for the fixture to see."""
    head_argmax.join_pairs(empty(2, 2, 1, dtype=torch.float32))


@every_card
@pytest.mark.parametrize("rows", [4, 64, 128])
def test_heads(laid_out: Card, rows: int) -> None:
    head_argmax.head_argmax(empty(rows, HIDDEN), empty(1024, HIDDEN))


@every_card
def test_dense_products(laid_out: Card) -> None:
    cpu = torch.device("cpu")
    for rows, outputs, gated in ((4, 9216, True), (32, 2112, True), (16, 4096, False), (32, 128, False)):
        weight = empty(outputs * (2 if gated else 1), HIDDEN)
        tile = few_row_linear.tile_for(outputs, HIDDEN, 132, gated)
        few_row_linear.few_row_linear(empty(rows, HIDDEN), weight, few_row_linear.counters(weight.shape[0], cpu), gated=gated, tile=tile)


@every_card
@pytest.mark.parametrize(("outputs", "width", "gated"), few_row_linear.MEASURED)
def test_dense_products_with_tiles_of_their_own(laid_out: Card, outputs: int, width: int, gated: bool) -> None:
    tile = few_row_linear.measured_tile(outputs, width, 132, gated, laid_out)
    assert (tile == few_row_linear.MEASURED[outputs, width, gated]) is (laid_out.shared >= CARDS["H200"].card.shared)
    small = empty(256 if gated else 128, width)  # a program's tile does not depend on how many there are
    for rows in (4, 32):
        done = few_row_linear.counters(256, torch.device("cpu"))
        few_row_linear.few_row_linear(empty(rows, width), small, done, gated=gated, tile=tile)


def fp8(*shape: int, scales: tuple[int, ...]) -> Scaled:
    return scaled(torch.empty(shape, dtype=torch.uint8).view(FP8), torch.empty(scales))


@cards_with_fp8
def test_dense_products_of_fp8(laid_out: Card) -> None:
    cpu = torch.device("cpu")
    for rows, outputs, gated in ((1, 9216, True), (4, 2112, True), (64, 2112, True), (16, 4096, False), (33, 8192, False), (4, 256, False)):
        weight = fp8(outputs * (2 if gated else 1), HIDDEN, scales=(outputs * (2 if gated else 1),))
        tile = few_row_linear.fp8_tile_for(outputs, HIDDEN, rows, 132, gated)
        few_row_linear.few_row_linear(empty(rows, HIDDEN), weight, few_row_linear.counters(weight.shape[0], cpu), gated=gated, tile=tile)


@cards_with_fp8
@pytest.mark.parametrize("per_output", [False, True])
def test_experts_of_fp8(laid_out: Card, per_output: bool) -> None:
    w13 = fp8(EXPERTS, 2 * INNER, HIDDEN, scales=(EXPERTS, 2 * INNER) if per_output else (EXPERTS,))
    w2 = fp8(EXPERTS, HIDDEN, INNER, scales=(EXPERTS, HIDDEN) if per_output else (EXPERTS,))
    few_and_grouped(w13, w2)


@every_card
@pytest.mark.parametrize("zeros", [False, True], ids=("symmetric", "zeros"))
def test_experts_of_four_bits(laid_out: Card, zeros: bool) -> None:
    def made(outputs: int, width: int) -> Grouped:
        pairs = torch.empty(EXPERTS, outputs // 2, width // 32, dtype=torch.uint8) if zeros else None
        return Grouped(torch.empty(EXPERTS, outputs, width // 2, dtype=torch.uint8), empty(EXPERTS, outputs, width // 32), pairs)

    w13, w2 = made(2 * INNER, HIDDEN), made(HIDDEN, INNER)
    weights, ids = few_and_grouped(w13, w2)
    if laid_out == CARDS["H200"].card:
        prefill_experts.prefill_experts(empty(320, HIDDEN), w13, w2, weights, ids, room=empty(EXPERTS * 2 * INNER * HIDDEN))


@every_card
@pytest.mark.parametrize("group", [32, 128])
def test_dense_products_of_four_bits(laid_out: Card, group: int) -> None:
    cpu = torch.device("cpu")
    for rows, outputs, gated in ((1, 9216, True), (4, 2112, True), (64, 2112, True), (16, 4096, False), (33, 8192, False), (4, 256, False)):
        count = outputs * (2 if gated else 1)
        weight = Grouped(torch.empty(count, HIDDEN // 2, dtype=torch.uint8), empty(count, HIDDEN // group))
        tile = few_row_linear.four_bit_tile_for(outputs, HIDDEN, rows, 132, gated)
        few_row_linear.few_row_linear(empty(rows, HIDDEN), weight, few_row_linear.counters(count, cpu), gated=gated, tile=tile)


@every_card
@pytest.mark.parametrize("per", [4, 8])
def test_dense_products_in_registers(laid_out: Card, per: int) -> None:
    cpu = torch.device("cpu")
    for rows, outputs, gated in ((1, 9216, True), (4, 2112, True), (16, 4096, False), (32, 8192, False), (4, 250, False)):
        count = outputs * (2 if gated else 1)
        weight: Weight = scaled(torch.empty(count, HIDDEN, dtype=FP8), torch.empty(count))
        if per == 8:
            weight = Grouped(torch.empty(count, HIDDEN // 2, dtype=torch.uint8), empty(count, HIDDEN // 32))
        warps = warps_for(outputs, HIDDEN, rows, per, 132, gated)
        few_row_linear.few_row_linear(empty(rows, HIDDEN), weight, few_row_linear.counters(count, cpu), gated=gated, warps=warps)


@every_card
@pytest.mark.parametrize("per", [4, 8])
def test_experts_in_registers(laid_out: Card, per: int) -> None:
    def weight(outputs: int, width: int) -> Weight:
        if per == 4:
            return scaled(torch.empty(EXPERTS, outputs, width, dtype=FP8), torch.empty(EXPERTS, outputs))
        return Grouped(torch.empty(EXPERTS, outputs, width // 2, dtype=torch.uint8), empty(EXPERTS, outputs, width // 32))

    w13, w2 = weight(2 * INNER, HIDDEN), weight(HIDDEN, INNER)
    for tokens, size in ((1, 0), (16, 0), (32, 16), (320, 32)):
        x, shares = empty(tokens, HIDDEN), empty(tokens, TOPK, dtype=torch.float32)
        ids, warps = torch.empty(tokens, TOPK, dtype=torch.int32), register_experts.warps_for(tokens, w13)
        if size:
            grouped_experts.grouped_experts(x, w13, w2, shares, ids, warps=(size, *warps))
        else:
            few_token_experts.few_token_experts(x, w13, w2, shares, ids, few_token_experts.counters(HIDDEN, x.device), warps=warps)


@every_card
def test_experts(laid_out: Card) -> None:
    w13, w2 = empty(EXPERTS, 2 * INNER, HIDDEN), empty(EXPERTS, HIDDEN, INNER)
    weights, ids = few_and_grouped(w13, w2)
    if laid_out == CARDS["H200"].card:  # the tiles of prefills are for Hopper alone
        for tma in (False, True):
            prefill_experts.prefill_experts(empty(320, HIDDEN), w13, w2, weights, ids, tma=tma)


def few_and_grouped(w13: Weight, w2: Weight) -> tuple[torch.Tensor, torch.Tensor]:
    """Launch the experts at 1 to 320 tokens; router weights and ids of the last."""
    for tokens in (1, 16):
        weights, ids, blocks = expert_routing.expert_routing(empty(tokens, EXPERTS), empty(EXPERTS), TOPK)
        done = few_token_experts.counters(HIDDEN, ids.device)
        few_token_experts.few_token_experts(empty(tokens, HIDDEN), w13, w2, weights, ids, done, blocks)
    for tokens in (32, 320):
        weights, ids = empty(tokens, TOPK, dtype=torch.float32), torch.zeros(tokens, TOPK, dtype=torch.int32)
        grouped_experts.grouped_experts(empty(tokens, HIDDEN), w13, w2, weights, ids)
    return weights, ids


@pytest.mark.parametrize(
    ("shared", "rows", "dim", "dtype", "tile"),
    [
        (227 * KIB, 16, 512, torch.bfloat16, KeyTile(32, 4, 3)),
        (227 * KIB, 32, 256, torch.bfloat16, KeyTile(32, 4, 5)),
        (163 * KIB, 32, 256, torch.bfloat16, KeyTile(64, 4, 3)),
        (227 * KIB, 128, 256, torch.bfloat16, KeyTile(64, 4, 3)),
        (227 * KIB, 128, 512, torch.bfloat16, KeyTile(16, 4, 3)),
        (227 * KIB, 64, 512, torch.float32, KeyTile(16, 4, 3)),
        (227 * KIB, 128, 512, torch.float32, None),
        (99 * KIB, 32, 512, torch.bfloat16, KeyTile(32, 4, 3)),
        (99 * KIB, 64, 512, torch.bfloat16, KeyTile(16, 4, 3)),
        (64 * KIB, 16, 256, torch.float16, KeyTile(32, 4, 3)),
        (48 * KIB, 64, 512, torch.float16, None),
    ],
)
def test_tiles_get_smaller_with_the_card(shared: int, rows: int, dim: int, dtype: torch.dtype, tile: KeyTile | None) -> None:
    assert key_tile(rows, dim, dim, dtype, Card(shared, holds=shared == 227 * KIB)) == tile


def test_what_was_launched_everywhere_before_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """An H200's prefill tile on an L40S, and on the H200 four blocks of 128 keys under 16 query tokens: the comparison can fail."""
    shared: list[int] = []
    q, k, buffer = empty(256, 16, 256), empty(256, 8, 256), empty(SLOTS, 8, 256)
    with without_assembling(), compiling_for(89, lambda _name, kernel: shared.append(kernel.metadata.shared), monkeypatch):
        prefill_attention.prefill_attention(
            q, k, k, buffer, buffer, indptr(0, 256), indptr(0, 64), torch.arange(64), 1.0,
            out=torch.empty_like(q), longest=256, window=1023, tile=PromptTile(128, 64, 8, 2),
        )  # fmt: skip
    assert shared[0] > CARDS["L40S"].card.shared
    shared.clear()
    monkeypatch.undo()
    q, new, buffer = empty(16, 16, 512), empty(16, 2, 512), empty(SLOTS, 2, 512)
    with without_assembling(), compiling_for(90, lambda _name, kernel: shared.append(kernel.metadata.shared), monkeypatch):
        few_query_attention.few_query_attention(
            q, buffer, buffer, indptr(0, 9), torch.arange(9), 1.0,
            out=torch.empty_like(q), queries=16, k_new=new, v_new=new, parts=2, tile=KeyTile(128, 4, 4),
        )  # fmt: skip
    assert max(shared) > CARDS["H200"].card.shared


def test_an_operator_hears_of_tiles_that_were_not_measured() -> None:
    said = "tiles for 101,376 bytes of shared memory, not measured: 64 x 32 at head_dim 256, 32 x 32 at head_dim 512"
    assert smaller_than_measured((256, 512), torch.bfloat16, CARDS["L40S"].card) == said
    assert smaller_than_measured((256, 512), torch.bfloat16, CARDS["A100"].card) is None
    assert smaller_than_measured((256, 512), torch.bfloat16, CARDS["H200"].card) is None


def test_cards_with_too_little_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turing's 64 KiB: attention has tiles for decoding; products, experts and heads are SGLang's."""
    turing = Card(64 * KIB, holds=False)
    for module in (limits, card):
        monkeypatch.setattr(module, "card", lambda device: turing)
    said = "a program may have 65,536 bytes of the GPU's shared memory; 101,376 are needed"
    assert head_argmax.reason_against(empty(1, 64), empty(512, 64)) == said
    assert few_row_linear.reason_against(empty(1, 64), empty(512, 64)) == said
    w13, w2, weights = empty(4, 128, 64), empty(4, 64, 64), empty(1, 2, dtype=torch.float32)
    assert gated_experts.reason_against(empty(1, 64), w13, w2, weights, torch.zeros(1, 2, dtype=torch.int32)) == said
    q, buffer = empty(1, 8, 512), empty(16, 1, 512)
    assert limits.reason_against_few_query(q, buffer, buffer, torch.empty_like(q), 1, None, None) is None
    reason = limits.reason_against_prefill(empty(1, 64, 512), buffer, buffer, buffer, buffer, empty(1, 64, 512))
    assert reason is not None
    assert "no tile for 64 query heads a KV head of 512 in torch.bfloat16 fits the 65,536 bytes" in reason
    assert prompt_tile(8, 512, 512, torch.float16, turing) is not None


@pytest.mark.parametrize(
    ("major", "shared", "found"),
    [
        (8, 99 * KIB, CARDS["L40S"].card),
        (9, 227 * KIB, CARDS["H200"].card),
        (10, 227 * KIB, CARDS["B200"].card),
        (12, 99 * KIB, CARDS["RTX PRO 6000"].card),
    ],
)
def test_what_a_card_says_of_itself(major: int, shared: int, found: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    said = SimpleNamespace(major=major, shared_memory_per_block=48 * KIB, shared_memory_per_block_optin=shared)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: said)
    card.card.cache_clear()
    assert card.card(torch.device("cuda", 0)) == found
    card.card.cache_clear()
    assert card.card(torch.device("cpu")) == card.HOPPER == CARDS["H200"].card
