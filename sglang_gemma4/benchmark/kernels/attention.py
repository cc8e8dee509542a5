"""Cases of attention: a decode or verify step, and a prefill, over layers of all sizes."""

import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from sglang_gemma4.attention.flash_prefill import FlashPrefill, Kind
from sglang_gemma4.benchmark.kernels.harness import Case, Place, Row, candidates, dependently, lazily, short
from sglang_gemma4.benchmark.kernels.timer import Call
from sglang_gemma4.kernels.attention.few_query_attention import few_query_attention
from sglang_gemma4.kernels.attention.prefill_attention import prefill_attention
from sglang_gemma4.kernels.attention.tiles import KeyTile, PromptTile
from sglang_gemma4.kernels.kv_cache.formats import FORMATS, dequantise_reference, quantise_reference

KINDS = {
    "sliding": Kind(16, 8, 256, 1023),
    "full": Kind(16, 2, 512, -1),
    "12B full": Kind(16, 1, 512, -1),
    "31B sliding": Kind(32, 16, 256, 1023),
    "31B full": Kind(32, 4, 512, -1),
}
"""Layers by name; the first two are 26B-A4B's. 12B has the same sliding layers."""
STEP_KINDS = KINDS | {
    "E4B sliding": Kind(8, 2, 256, 511),
    "E4B full": Kind(8, 2, 512, -1),
    "E2B sliding": Kind(8, 1, 256, 511),
    "E2B full": Kind(8, 1, 512, -1),
}
KEY_TILES = {
    256: ((64, 4, 3), (32, 4, 3), (32, 4, 4), (32, 4, 5), (16, 4, 4), (64, 8, 3), (32, 8, 3, 64), (64, 8, 3, 64)),
    512: ((32, 4, 3), (16, 4, 3), (16, 4, 4), (32, 8, 3), (32, 8, 3, 64), (16, 8, 4, 64)),
}
"""Candidate tiles by head dimension; the first are in use (runs/2026-11-22-kernel-times, runs/2026-11-23-attention-tiles)."""
LEVEL_TILES = {
    256: ((32, 4, 5), (64, 4, 3), (32, 4, 3), (32, 4, 4), (64, 4, 4), (64, 8, 3), (64, 8, 4), (32, 8, 5), (64, 8, 3, 64)),
    512: ((32, 4, 3), (32, 8, 3), (32, 8, 4), (32, 4, 4), (64, 8, 2), (64, 8, 3), (16, 4, 5), (32, 8, 3, 64), (64, 8, 3, 64)),
}
"""Candidate tiles over a quantised cache, whose blocks take half the memory and are converted. The first are in use;
those for dimension 256 were measured in runs/2026-11-26-int8-words."""
PROMPT_TILES = {
    256: ((128, 64, 8, 2), (128, 64, 8, 3), (128, 128, 8, 2), (64, 64, 4, 2), (64, 64, 4, 3), (128, 32, 8, 3)),
    512: ((64, 32, 8, 2), (64, 32, 4, 2), (64, 64, 8, 2), (128, 32, 8, 2), (64, 32, 8, 3), (32, 32, 4, 2)),
}
MOST_BYTES = 12e9
"""Largest number of bytes of a row's keys and values; larger rows are left out."""
SHORTEST = 50
"""Fewest cached keys of a request in a mixed step."""


ORDER = ("q", "k", "v", "out", "k_buffer", "v_buffer", "qo_indptr", "kv_indptr", "kv_indices", "longest", "scale", "window")
"""Names of the arguments of :func:`extend`, in order; those up to ``kv_indices`` are tensors."""


def extend(*given: Any) -> Any:
    """SGLang's extend kernel, which its triton backend calls for prefills and verify steps; ``given`` is in :data:`ORDER`."""
    from sglang.kernels.ops.attention.extend_attention import extend_attention_fwd

    *tensors, longest, scale, window = given
    extend_attention_fwd(*tensors, None, True, None, longest, 1.0, 1.0, scale, sliding_window_size=window)
    return given[3]


@dataclass
class Step:
    """The launches of a decode or verify step; ``lengths`` are the cached keys of each request, in slots of random order."""

    place: Place
    kind: Kind
    queries: int
    lengths: Sequence[int]

    def __post_init__(self) -> None:
        place, kind, tokens, slots = self.place, self.kind, len(self.lengths) * self.queries, sum(self.lengths)
        self.q, self.out = (place.rand(tokens, kind.heads, kind.dim) for _ in range(2))
        self.k, self.v = (place.rand(slots + 1, kind.kv_heads, kind.dim) for _ in range(2))
        self.k_new, self.v_new = (place.rand(tokens, kind.kv_heads, kind.dim) for _ in range(2))
        self.indptr = torch.tensor([0, *itertools.accumulate(self.lengths)], dtype=torch.int32, device=place.device)
        self.indices = torch.randperm(slots, device=place.device)

    def ours(self, **chosen: Any) -> torch.Tensor:
        new = {"k_new": self.k_new, "v_new": self.v_new} if self.queries > 1 else {}
        few_query_attention(
            self.q, self.k, self.v, self.indptr, self.indices, 1.0, out=self.out, queries=self.queries, window=self.kind.window,
            **new, **chosen,
        )  # fmt: skip
        return self.out

    def stock(self) -> Any:
        """SGLang's extend kernel for a verify step, its decode kernel for a decode step."""
        return self._verify() if self.queries > 1 else self._decode()

    def _verify(self) -> Any:
        qo = torch.arange(0, self.q.shape[0] + 1, self.queries, dtype=torch.int32, device=self.place.device)
        given = (self.q, self.k_new, self.v_new, self.out, self.k, self.v, qo, self.indptr, self.indices)
        return extend(*given, self.queries, 1.0, self.kind.window)

    def _decode(self, splits: int = 8) -> torch.Tensor:
        from sglang.kernels.ops.attention.decode_attention import decode_attention_fwd

        requests, heads, device = len(self.lengths), self.kind.heads, self.place.device
        logits = torch.empty(requests, heads, splits, self.kind.dim, dtype=torch.float32, device=device)
        lse = torch.empty(requests, heads, splits, dtype=torch.float32, device=device)
        counts = torch.full((requests,), splits, dtype=torch.int32, device=device)
        given = (self.q, self.k, self.v, self.out, self.indptr, self.indices)
        decode_attention_fwd(*given, logits, lse, counts, splits, 1.0, 1.0, 1.0)
        return self.out


class LevelStep(Step):
    """A step over a quantised cache, which also holds a verify step's own keys; :class:`Step` reads the dequantised values."""

    k_levels: torch.Tensor
    v_levels: torch.Tensor
    k_scales: torch.Tensor
    v_scales: torch.Tensor

    def __init__(self, place: Place, kind: Kind, queries: int, lengths: Sequence[int], cache: str) -> None:
        super().__init__(place, kind, queries, lengths)
        fresh, rows = self.q.shape[0], self.k.shape[0]
        self.new_slots = torch.arange(rows, rows + fresh, device=place.device)
        for name in ("k", "v"):
            both = torch.cat([getattr(self, name), getattr(self, f"{name}_new")])
            levels, scales = quantise_reference(both, FORMATS[cache].dtype)
            values = dequantise_reference(levels, scales).to(place.dtype)
            for field, made in (("", values[:rows]), ("_new", values[rows:]), ("_levels", levels), ("_scales", scales)):
                setattr(self, f"{name}{field}", made)

    def over_levels(self, **chosen: Any) -> torch.Tensor:
        new = {"new_slots": self.new_slots} if self.queries > 1 else {}
        few_query_attention(
            self.q, self.k_levels, self.v_levels, self.indptr, self.indices, 1.0, out=self.out, queries=self.queries,
            window=self.kind.window, k_scales=self.k_scales, v_scales=self.v_scales, **new, **chosen,
        )  # fmt: skip
        return self.out


def moved_by(kind: Kind, keys: int) -> float:
    """Bytes of ``keys`` bfloat16 keys and their values."""
    return 2.0 * 2 * keys * kind.kv_heads * kind.dim


def step(place: Place, layer: str, queries: int, requests: int, keys: int) -> Row | None:
    """The row of a step: ``requests`` requests with ``keys`` cached keys each; a decode step's own key is among them."""
    kind = STEP_KINDS[layer]
    moved = moved_by(kind, requests * keys)
    if (kind.window >= 0 and keys > kind.window + 1) or moved > MOST_BYTES:
        return None
    made = Step(place, kind, queries, [keys] * requests)
    tiles = {
        f"ours, {short(tile)} x {parts}": dependently(partial(made.ours, tile=KeyTile(*tile), parts=parts))
        for tile, parts in itertools.product(KEY_TILES[kind.dim], (1, 2, 3, 4, 6, 8, 16, 32))
    }
    return Row({"SGLang": made.stock, "ours, each alone": made.ours, "ours": dependently(made.ours)}, moved, tiles=tiles)


def level_step(place: Place, layer: str, cache: str, queries: int, requests: int, keys: int) -> Row | None:
    """:func:`step` over a quantised cache."""
    kind = STEP_KINDS[layer]
    if (kind.window >= 0 and keys > kind.window + 1) or moved_by(kind, requests * keys) > MOST_BYTES:
        return None
    made = LevelStep(place, kind, queries, [keys] * requests, cache)
    ways: dict[str, Call] = {"over bfloat16": dependently(made.ours), "ours": dependently(made.over_levels)}
    tiles = {
        f"ours, {short(tile)} x {parts}": dependently(partial(made.over_levels, tile=KeyTile(*tile), parts=parts))
        for tile, parts in itertools.product(LEVEL_TILES[kind.dim], (1, 2, 3, 4, 8, 16))
    }
    return Row(ways, moved_by(kind, requests * keys) / 2 + 8.0 * requests * keys * kind.kv_heads, tiles=tiles)


def mixed_lengths(requests: int, longest: int) -> list[int]:
    """``requests`` lengths, log-uniform from :data:`SHORTEST` to ``longest``, the same in every run."""
    generator = random.Random(0)
    return [round(math.exp(generator.uniform(math.log(SHORTEST), math.log(longest)))) for _ in range(requests)]


def mixed_step(place: Place, layer: str, queries: int, requests: int, longest: int) -> Row:
    """The row of a step over requests of mixed lengths; a sliding layer has at most its window of each."""
    kind = KINDS[layer]
    lengths = [min(length, kind.window + 1) if kind.window >= 0 else length for length in mixed_lengths(requests, longest)]
    made = Step(place, kind, queries, lengths)
    ways: dict[str, Call] = {"SGLang": made.stock}
    ways |= {"ours, as if equal": partial(made.ours, balanced=False), "ours, balanced": partial(made.ours, balanced=True)}
    return Row(ways, moved_by(kind, sum(lengths)))


def prefill(place: Place, layer: str, prompts: str) -> Row:
    """The row of a prefill. ``prompts``: "REQUESTSxTOKENS" or "REQUESTSxTOKENS+PREFIX", new and cached tokens of each request."""
    kind = KINDS[layer]
    requests, tokens, prefix = (int(part) for part in f"{prompts}+0".replace("x", "+").split("+")[:3])
    pairs = requests * sum(min(at, kind.window) + 1 if kind.window >= 0 else at + 1 for at in range(prefix, prefix + tokens))
    if kind.window >= 0:
        prefix = min(prefix, kind.window)  # a sliding layer lists only the keys in its window
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
        "a decode (queries 1) or verify step: SGLang's decode or extend kernel, ours; floor: keys and values read once",
        {"layer": tuple(STEP_KINDS), "queries": (1, 4), "requests": (1, 8, 32, 80), "keys": (512, 1024, 8192, 65536)},
        step,
        {"layer": tuple(STEP_KINDS), "queries": (1, 4), "requests": (2,), "keys": (5,)},
    ),
    Case(
        "attention-levels",
        "the same over a quantised KV cache: ours, and ours over bfloat16; floor: quantised values and scales read once",
        {
            "layer": ("full", "sliding"),
            "cache": tuple(FORMATS),
            "queries": (1, 4),
            "requests": (16,),
            "keys": (1024, 8192, 32768, 65536),
        },
        level_step,
        {"layer": ("full", "sliding"), "cache": tuple(FORMATS), "queries": (1, 4), "requests": (2,), "keys": (5,)},
    ),
    Case(
        "attention-mixed",
        f"the same over log-uniform lengths from {SHORTEST} keys: SGLang's kernel, ours with and without balanced parts",
        {"layer": tuple(KINDS), "queries": (1, 4), "requests": (60, 8, 80), "longest": (6000,)},
        mixed_step,
        {"layer": tuple(KINDS), "queries": (1, 4), "requests": (3,), "longest": (400,)},
    ),
    Case(
        "prefill-attention",
        "a prefill: SGLang's extend kernel, its FlashAttention-4 as FLASH_PREFILL calls it, ours; floor: the matmuls",
        {"layer": tuple(KINDS), "prompts": ("1x1000", "8x1000", "1x8192", "1x8192+8192")},
        prefill,
        {"layer": tuple(KINDS), "prompts": ("2x5+3",)},
        sets=1,
        graph=False,
    ),
)
