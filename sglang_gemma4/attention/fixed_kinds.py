"""Attention of mixed batches inside a CUDA graph: by tensors at fixed addresses, which each replay fills.

A graph is captured for a number of rows. The device holds how many of them belong to running requests, how many
prompts there are and how long these are. Offsets of absent requests repeat the last one, and a list says which tile
of which prompt a program computes. The rows of running requests come first. Their kernel writes all rows of its
capacity; the prompts' kernel, which runs after it, writes the rows of prompts again. In the full layers of large
graphs that kernel is FlashAttention-4, where it was chosen (:mod:`attention.fixed_flash`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from sglang.srt.layers.attention.triton_backend import logit_capping_mod
from sglang.srt.mem_cache.memory_pool import KVWriteLoc
from sglang.srt.utils.common import async_h2d

from sglang_gemma4.attention import fixed_flash
from sglang_gemma4.attention.fixed_flash import FixedFlash
from sglang_gemma4.attention.flash_prefill import FlashPrefill, Kind
from sglang_gemma4.attention.quantised import ReadsLevels
from sglang_gemma4.attention.quantised_pool import cache_of
from sglang_gemma4.attention.two_kinds import Part, TwoKinds
from sglang_gemma4.kernels.attention.few_query_attention import few_query_attention
from sglang_gemma4.kernels.attention.limits import reason_against_few_query, reason_against_prefill
from sglang_gemma4.kernels.attention.prefill_attention import list_tiles, prefill_attention, tokens_of
from sglang_gemma4.kernels.attention.tiles import prompt_tile
from sglang_gemma4.kernels.card import card


@dataclass(frozen=True)
class Room:
    """Capacity of a replay.

    Args:
        running: most requests that are decoded, of ``each`` rows; ``prompts``: most that are prefilled.
        keys: most cached keys of all running requests together; ``prefix_keys``: of all prompts.
        window: most keys of a sliding layer that a request sees.
        verify: whether the running rows' own keys are not in the pool yet (a verify step); else they are (a decode
            step).
    """

    running: int
    each: int
    prompts: int
    keys: int
    prefix_keys: int
    window: int
    verify: bool


class Keys:
    """Slots of the keys of the prompts or of the running requests: ``[requests + 1]`` offsets into ``[keys]`` slots,
    for full and for sliding layers."""

    def __init__(self, requests: int, keys: int, window_keys: int, device: torch.device) -> None:
        def pair(count: int) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.zeros(requests + 1, dtype=torch.int32, device=device), torch.zeros(count, dtype=torch.int64, device=device)

        self.full, self.sliding = pair(keys), pair(window_keys)

    def fits(self, requests: int, metadata: Any) -> bool:
        """Whether a backend's metadata of ``requests`` requests fits here."""
        slots = (metadata.kv_indices, metadata.window_kv_indices)
        room = (self.full[1], self.sliding[1])
        return requests < self.full[0].numel() and all(own.numel() <= most.numel() for own, most in zip(slots, room, strict=True))

    def fill(self, requests: int, metadata: Any) -> None:
        """Copy a backend's metadata of ``requests`` requests; requests after them get no keys."""
        for (offsets, slots), own_offsets, own_slots in (
            (self.full, metadata.kv_indptr, metadata.kv_indices),
            (self.sliding, metadata.window_kv_indptr, metadata.window_kv_indices),
        ):
            offsets[: requests + 1].copy_(own_offsets[: requests + 1])
            offsets[requests + 1 :].copy_(own_offsets[requests : requests + 1].expand(offsets.numel() - requests - 1))
            slots[: own_slots.numel()].copy_(own_slots)


class FixedKinds(TwoKinds):
    """Attention of the rows of running requests, then of prompts, of a forward of ``rows`` rows.

    Args:
        backend: triton's attention backend, whose pool is read and written.
        layers: the model's ``RadixAttention``; all that have a window have the same one.
        rows: rows of the largest graph.
        dtype: dtype of the forward.
    """

    def __init__(self, backend: Any, layers: Sequence[Any], rows: int, room: Room, batch: Any, dtype: torch.dtype) -> None:
        super().__init__((Part(rows, batch, backend),))
        device, self.dtype = torch.device(backend.device), dtype
        self.backend, self.room = backend, room
        self.levels = isinstance(backend, ReadsLevels)
        """Whether the KV cache is quantised. A step's own keys are then read from it too."""
        self.running = Keys(room.running, room.keys, room.running * room.window, device)
        self.prompts = Keys(room.prompts, room.prefix_keys, room.prompts * room.window, device)
        self.slots = torch.zeros(rows, dtype=torch.int64, device=device)
        """Where keys go in the buffers of sliding layers; rows without a request go to the pool's padding slot."""
        self.tokens = {_sliding(layer): self._tokens(layer) for layer in layers}
        programs = {sliding: -(-rows // tokens) + room.prompts for sliding, tokens in self.tokens.items()}
        self._host = torch.zeros(room.prompts + 1 + 2 * sum(programs.values()), dtype=torch.int32, device=device)
        self.starts, *lists = self._host.split([room.prompts + 1, *(2 * count for count in programs.values())])
        self.tiles = {sliding: own.view(-1, 2) for sliding, own in zip(programs, lists, strict=True)}
        for tiles in self.tiles.values():
            tiles[:, 1] = -1  # a capture computes no prompt
        self.size = rows
        """Rows of the graph that is being captured."""
        # Unused rows go through the layers too and must hold finite values: zeros, or outputs of an earlier layer.
        self._out = torch.zeros(rows * max(layer.tp_q_head_num * layer.v_head_dim for layer in layers), dtype=dtype, device=device)
        self._full = sorted({_kind(layer) for layer in layers if not _sliding(layer)})
        self.flash: FixedFlash | None = None
        """Computes the prompts' full layers in graphs with enough rows."""

    def take(self, flash: FlashPrefill | None) -> str | None:
        """Have FlashAttention-4 compute the prompts' full layers in graphs captured from now on, or say why not."""
        room, rows, dtype = min(fixed_flash.PREFIX_KEYS, self.room.prefix_keys), self.slots.numel(), self._out.dtype
        reason = fixed_flash.reason_against(flash, self._full, rows, room, dtype)
        if reason is None and flash is not None:
            self.flash = FixedFlash(flash, self._full[0], rows, self.room.prompts, room, dtype, self._out.device)
        return reason

    def flashes(self, size: int) -> FixedFlash | None:
        """FlashAttention-4 for the prompts' full layers in the graph of ``size`` rows; None if our kernel computes
        them."""
        return self.flash if self.flash is not None and size >= self.flash.least else None

    def reason_against(self, layer: Any, dtype: torch.dtype) -> str | None:
        """Why the kernels here do not compute this layer in a forward of ``dtype``, or None."""
        cache = cache_of(self.backend.token_to_kv_pool, layer.layer_id)
        if layer.k_scale is not None or layer.v_scale is not None or layer.is_cross_attention or layer.xai_temperature_len > 0:
            return "a layer has scales, a temperature or an encoder's keys"

        def zeros(heads: int, dim: int) -> torch.Tensor:
            return torch.zeros(self.room.each, heads, dim, dtype=dtype, device=cache.k.device)

        q, out = zeros(layer.tp_q_head_num, layer.qk_head_dim), zeros(layer.tp_q_head_num, layer.v_head_dim)
        k, v = zeros(layer.tp_k_head_num, layer.qk_head_dim), zeros(layer.tp_v_head_num, layer.v_head_dim)
        new = (k, v) if self.room.verify and not self.levels else (None, None)
        own = (cache.k, cache.v) if self.levels else (k, v)
        beside: dict[str, Any] = {"k_scales": cache.k_scales, "v_scales": cache.v_scales, "levels": self.levels}
        reason = reason_against_few_query(q, cache.k, cache.v, out, self.room.each, *new, **beside)
        return reason or reason_against_prefill(q, *own, cache.k, cache.v, out, **beside)

    def fits(self, prompts: Part, running: Part, size: int) -> str | None:
        """Why these parts, whose metadata are prepared, do not fit a replay of the graph of ``size`` rows; or None."""
        room = self.room
        if running.rows != running.batch.batch_size * room.each:
            return f"running requests of {running.rows // running.batch.batch_size} rows, not the {room.each} that were captured"
        if not self.running.fits(running.batch.batch_size, running.backend.forward_metadata):
            return f"more than {room.running} running requests, or {room.keys} keys of theirs"
        if not self.prompts.fits(prompts.batch.batch_size, prompts.backend.forward_metadata):
            return f"more than {room.prompts} prompts, or {room.prefix_keys} cached keys of theirs"
        flash = self.flashes(size)
        if flash is not None and prompts.backend.forward_metadata.kv_indices.numel() > flash.prefix_keys:
            return f"prompts have more than {flash.prefix_keys} cached keys, the room of FlashAttention-4 in a graph"
        return None

    def fill(self, prompts: Part, running: Part) -> None:
        """Set up the next replay; the parts fit (:meth:`fits`)."""
        self.running.fill(running.batch.batch_size, running.backend.forward_metadata)
        self.prompts.fill(prompts.batch.batch_size, prompts.backend.forward_metadata)
        self._host.copy_(async_h2d(self._numbers(prompts.batch, running.rows), dtype=torch.int32, device=self._host.device))
        if self.flash is not None:
            self.flash.fill(self.starts, self.prompts.full[0])
        self._out.zero_()  # if a request's values overflowed, no later step has them in unused rows
        slots = [part.backend.forward_metadata.swa_out_cache_loc for part in (running, prompts)]
        if all(own is not None for own in slots):
            torch.cat(slots, out=self.slots[: running.rows + prompts.rows])
            self.slots[running.rows + prompts.rows :].zero_()

    def _numbers(self, prompts: Any, before: int) -> list[int]:
        """Where each prompt's rows begin, followed by the tiles of sliding and of full layers."""
        starts = [before]
        for length in prompts.extend_seq_lens_cpu:
            starts.append(starts[-1] + length)
        numbers = starts + [starts[-1]] * (self.room.prompts + 1 - len(starts))
        for sliding, tiles in self.tiles.items():
            listed = list_tiles(prompts.extend_prefix_lens_cpu, prompts.extend_seq_lens_cpu, self.tokens[sliding], tiles.shape[0])
            assert listed is not None  # there is space for a partial tile of each prompt in addition to those of all rows
            numbers += listed
        return numbers

    @property
    def sliding_slots(self) -> torch.Tensor | None:  # type: ignore[override]
        """Slots of sliding layers for the rows of the graph that is being captured."""
        return self.slots[: self.size]

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        layer: Any,
        forward_batch: Any,
        save_kv_cache: bool = True,
    ) -> torch.Tensor:
        """As :meth:`TwoKinds.forward`, of layers that own keys and values."""
        if k is None or v is None:
            raise ValueError("a layer that shares another's keys and values is in no graph of a whole mixed batch")
        rows = q.shape[0]
        q = q.view(rows, layer.tp_q_head_num, layer.qk_head_dim)
        k, v = k.view(rows, -1, layer.qk_head_dim), v.view(rows, -1, layer.v_head_dim)
        places = KVWriteLoc.for_batch(forward_batch, swa_loc=self.sliding_slots)
        if save_kv_cache:
            self.backend._set_kv_buffer(forward_batch, layer, places, k, v)
        cache, sliding = cache_of(self.backend.token_to_kv_pool, layer.layer_id), _sliding(layer)
        window = layer.sliding_window_size if sliding else -1
        out = self._out[: rows * layer.tp_q_head_num * layer.v_head_dim].view(rows, layer.tp_q_head_num, layer.v_head_dim)
        few = min(self.room.running, rows // self.room.each) * self.room.each
        offsets, slots = self.running.sliding if sliding else self.running.full
        own: dict[str, Any] = {}
        beside: dict[str, Any] = {}
        if self.levels:
            beside = {"k_scales": cache.k_scales, "v_scales": cache.v_scales, "new_slots": self.backend._slots(layer, places)[:rows]}
        if self.room.verify:
            own = {"new_slots": beside["new_slots"][:few]} if self.levels else {"k_new": k[:few], "v_new": v[:few]}
        few_query_attention(
            q[:few], cache.k, cache.v, offsets[: few // self.room.each + 1], slots, layer.scaling, out=out[:few], queries=self.room.each,
            window=window if self.room.verify else -1,  # the keys of a decode step are those of its window
            soft_cap=logit_capping_mod(layer.logit_capping_method, layer.logit_cap), checked=True,
            k_scales=cache.k_scales, v_scales=cache.v_scales, **own,
        )  # fmt: skip
        offsets, slots = self.prompts.sliding if sliding else self.prompts.full
        where = (cache.k, cache.v, self.starts, offsets, slots, layer.scaling)
        flash = None if sliding else self.flashes(rows)
        if flash is not None:
            flash(q, k, v, *where, out, **beside)
        else:
            new = (cache.k, cache.v) if self.levels else (k, v)
            prefill_attention(q, *new, *where, out=out, longest=rows, window=window, tiles=self.tiles[sliding], checked=True, **beside)
        return out.view(rows, -1)

    def _tokens(self, layer: Any) -> int:
        """Tokens of a prompt that one program computes."""
        group, kept = layer.tp_q_head_num // layer.tp_k_head_num, cache_of(self.backend.token_to_kv_pool, layer.layer_id).k.dtype
        tile = prompt_tile(group, layer.qk_head_dim, layer.v_head_dim, self.dtype, card(torch.device(self.backend.device)), kept)
        return tokens_of(tile, group) if tile is not None else 1


def _kind(layer: Any) -> Kind:
    """The FlashAttention-4 shape of a layer without a window."""
    return Kind(layer.tp_q_head_num, layer.tp_k_head_num, layer.qk_head_dim, -1)


def _sliding(layer: Any) -> bool:
    return layer.sliding_window_size is not None and layer.sliding_window_size > -1
