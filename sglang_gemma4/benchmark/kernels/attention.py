"""Cases of attention: a decode or verify step, and a prefill; 26B-A4B's layers."""

import itertools
from functools import partial
from typing import Any

import torch

from sglang_gemma4.attention.flash_prefill import FlashPrefill, Kind
from sglang_gemma4.benchmark.kernels.harness import Case, Place, Row, candidates, lazily, short
from sglang_gemma4.benchmark.kernels.timer import Call
from sglang_gemma4.kernels.attention.few_query_attention import few_query_attention
from sglang_gemma4.kernels.attention.prefill_attention import prefill_attention
from sglang_gemma4.kernels.attention.tiles import KeyTile, PromptTile

KINDS = {"sliding": Kind(16, 8, 256, 1023), "full": Kind(16, 2, 512, -1)}
KEY_TILES = {
    256: ((64, 4, 3), (32, 4, 3), (64, 8, 3), (32, 8, 3, 64), (64, 8, 3, 64)),
    512: ((32, 4, 3), (16, 4, 3), (32, 8, 3), (32, 8, 3, 64), (16, 8, 4, 64)),
}
"""By head dimension; the first are in use (runs/2026-11-22-kernel-times, runs/2026-11-23-attention-tiles)."""
PROMPT_TILES = {
    256: ((128, 64, 8, 2), (128, 64, 8, 3), (128, 128, 8, 2), (64, 64, 4, 2), (64, 64, 4, 3), (128, 32, 8, 3)),
    512: ((64, 32, 8, 2), (64, 32, 4, 2), (64, 64, 8, 2), (128, 32, 8, 2), (64, 32, 8, 3), (32, 32, 4, 2)),
}
MOST_BYTES = 12e9
"""Keys and values of a row; larger ones are left out."""


ORDER = ("q", "k", "v", "out", "k_buffer", "v_buffer", "qo_indptr", "kv_indptr", "kv_indices", "longest", "scale", "window")
"""Of what :func:`extend` takes; tensors up to ``kv_indices``."""


def extend(*given: Any) -> Any:
    """SGLang's extend kernel, which its triton backend calls for prefills and verify steps; what is given is in :data:`ORDER`."""
    from sglang.kernels.ops.attention.extend_attention import extend_attention_fwd

    *tensors, longest, scale, window = given
    extend_attention_fwd(*tensors, None, True, None, longest, 1.0, 1.0, scale, sliding_window_size=window)
    return given[3]


def step(place: Place, layer: str, queries: int, requests: int, keys: int) -> Row | None:
    """``requests`` requests with ``keys`` cached keys in slots of no order; a decode step's own key is among them."""
    kind, slots = KINDS[layer], requests * keys
    moved = 2.0 * 2 * slots * kind.kv_heads * kind.dim
    if (kind.window >= 0 and keys > kind.window + 1) or moved > MOST_BYTES:
        return None
    q, out = (place.rand(requests * queries, kind.heads, kind.dim) for _ in range(2))
    k, v = (place.rand(slots + 1, kind.kv_heads, kind.dim) for _ in range(2))
    k_new, v_new = (place.rand(requests * queries, kind.kv_heads, kind.dim) for _ in range(2))
    indptr = torch.arange(0, slots + 1, keys, dtype=torch.int32, device=place.device)
    indices = torch.randperm(slots, device=place.device)

    def ours(tile: KeyTile | None = None, parts: int | None = None) -> torch.Tensor:
        new = {"k_new": k_new, "v_new": v_new} if queries > 1 else {}
        few_query_attention(
            q, k, v, indptr, indices, 1.0, out=out, queries=queries, window=kind.window, tile=tile, parts=parts, **new
        )  # fmt: skip
        return out

    def verify() -> Any:
        qo = torch.arange(0, (requests + 1) * queries, queries, dtype=torch.int32, device=place.device)
        return extend(q, k_new, v_new, out, k, v, qo, indptr, indices, queries, 1.0, kind.window)

    def decode(splits: int = 8) -> torch.Tensor:
        from sglang.kernels.ops.attention.decode_attention import decode_attention_fwd

        logits = torch.empty(requests, kind.heads, splits, kind.dim, dtype=torch.float32, device=place.device)
        lse = torch.empty(requests, kind.heads, splits, dtype=torch.float32, device=place.device)
        counts = torch.full((requests,), splits, dtype=torch.int32, device=place.device)
        decode_attention_fwd(q, k, v, out, indptr, indices, logits, lse, counts, splits, 1.0, 1.0, 1.0)
        return out

    tiles = {
        f"ours, {short(tile)} x {parts}": partial(ours, KeyTile(*tile), parts)
        for tile, parts in itertools.product(KEY_TILES[kind.dim], (1, 2, 4, 8, 16, 32))
    }
    return Row({"SGLang": verify if queries > 1 else decode, "ours": ours}, moved, tiles=tiles)


def prefill(place: Place, layer: str, prompts: str) -> Row:
    """``prompts``: "REQUESTSxTOKENS" or "REQUESTSxTOKENS+PREFIX", new and cached tokens of each request."""
    kind = KINDS[layer]
    requests, tokens, prefix = (int(part) for part in f"{prompts}+0".replace("x", "+").split("+")[:3])
    pairs = requests * sum(min(at, kind.window) + 1 if kind.window >= 0 else at + 1 for at in range(prefix, prefix + tokens))
    if kind.window >= 0:
        prefix = min(prefix, kind.window)  # a sliding layer lists only the keys its window reaches
    ends = torch.arange(requests + 1, dtype=torch.int32, device=place.device)
    given: dict[str, Any] = {
        "q": place.rand(requests * tokens, kind.heads, kind.dim),
        **{name: place.rand(requests * tokens, kind.kv_heads, kind.dim) for name in ("k", "v")},
        **{name: place.rand(requests * prefix + 1, kind.kv_heads, kind.dim) for name in ("k_buffer", "v_buffer")},
        "qo_indptr": ends * tokens,
        "kv_indptr": ends * prefix,
        "kv_indices": torch.randperm(requests * prefix + 1, device=place.device)[: requests * prefix],
        "scale": kind.dim**-0.5,
        "out": place.rand(requests * tokens, kind.heads, kind.dim),
        "longest": tokens,
        "window": kind.window,
    }

    def returned(launch: Any, **more: Any) -> torch.Tensor:
        launch(**given, **more)
        out: torch.Tensor = given["out"]
        return out

    stock = partial(extend, *(given[name] for name in ORDER))

    def flash4() -> Call:
        from sglang.kernels.ops.attention.flash_attention_v4 import flash_attn_varlen_func

        return partial(returned, FlashPrefill(flash_attn_varlen_func))

    tiles = candidates(lambda tile: returned(prefill_attention, tile=tile), itertools.starmap(PromptTile, PROMPT_TILES[kind.dim]))
    moved = sum(2.0 * given[name].numel() for name in ("q", "k", "v", "k_buffer", "v_buffer", "out"))
    ways: dict[str, Call] = {"SGLang": stock, "FlashAttention-4": lazily(flash4), "ours": partial(returned, prefill_attention)}
    return Row(ways, moved, 4.0 * pairs * kind.heads * kind.dim, tiles)


CASES = (
    Case(
        "attention",
        "a decode (queries 1) or verify step: SGLang's decode or extend kernel, ours; floor: the keys and values read once",
        {"layer": tuple(KINDS), "queries": (1, 4), "requests": (1, 8, 32, 80), "keys": (512, 1024, 8192, 65536)},
        step,
        {"layer": tuple(KINDS), "queries": (1, 4), "requests": (2,), "keys": (5,)},
    ),
    Case(
        "prefill-attention",
        "a prefill: SGLang's extend kernel, its FlashAttention-4 as FLASH_PREFILL calls it, ours; floor: the products",
        {"layer": tuple(KINDS), "prompts": ("1x1000", "8x1000", "1x8192", "1x8192+8192")},
        prefill,
        {"layer": tuple(KINDS), "prompts": ("2x5+3",)},
        sets=1,
        graph=False,
    ),
)
