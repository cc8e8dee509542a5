"""SGLang's triton backend over a quantised KV cache: every key and value is read from the pool, a step's own ones
too.

A verify step, a decode step and prefill chunks of any length thus attend to the same values, and layers that share KV
read what the owning layer wrote. The pool, its format and its scales are looked up at each call: under MTP the
draft's backend is given the target's pool.
"""

from typing import Any

import torch
from sglang.srt.layers.attention.triton_backend import TritonAttnBackend, logit_capping_mod
from sglang.srt.layers.radix_attention import AttentionType
from sglang.srt.mem_cache.memory_pool import KVWriteLoc
from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool

from sglang_gemma4.attention.fixed_flash import flash_of
from sglang_gemma4.attention.image_masks import ImageAttention
from sglang_gemma4.attention.quantised_pool import cache_of, has_scales
from sglang_gemma4.attention.triton_window import Gemma4TritonAttnBackend
from sglang_gemma4.kernels.attention.few_query_attention import few_query_attention
from sglang_gemma4.kernels.attention.limits import reason_against_few_query, reason_against_prefill
from sglang_gemma4.kernels.attention.prefill_attention import prefill_attention
from sglang_gemma4.patching import takes


class UnsupportedError(NotImplementedError):
    """A layer or a batch that only an unquantised KV cache supports."""


class ReadsLevels:
    """Mixin for ``TritonAttnBackend``: forward_extend and forward_decode for a quantised KV cache."""

    token_to_kv_pool: Any
    forward_metadata: Any
    steps = 0
    """Layers computed here; read by tests."""

    def forward_extend(
        self,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        layer: Any,
        forward_batch: Any,
        save_kv_cache: bool = True,
        sinks: Any = None,
        score_mod: Any = None,
        aux_tensors: Any = None,
    ) -> torch.Tensor:
        """Returns ``[tokens, heads * value dim]``; arguments as in ``TritonAttnBackend``. ``k`` and ``v`` are
        written, or in the pool already."""
        refuse(layer, sinks, score_mod, aux_tensors)
        given = getattr(forward_batch, "_attn_output", None)
        out = q.new_empty(q.shape[0], layer.tp_q_head_num * layer.v_head_dim) if given is None else given
        where = KVWriteLoc.for_batch(forward_batch, swa_loc=self.forward_metadata.swa_out_cache_loc)
        if k is not None and v is not None and save_kv_cache:
            self._write(forward_batch, layer, where, k, v)
        cache, metadata = cache_of(self.token_to_kv_pool, layer.layer_id), self.forward_metadata
        heads = q.view(-1, layer.tp_q_head_num, layer.qk_head_dim)
        to = out.view(-1, layer.tp_q_head_num, layer.v_head_dim)
        slots = self._slots(layer, where)[: heads.shape[0]]
        window, indptr, indices, offsets = self._rail(layer)
        scale, v_scale = self._scales(layer)
        beside: dict[str, Any] = {"new_slots": slots, "k_scales": cache.k_scales, "v_scales": cache.v_scales}
        cap = logit_capping_mod(layer.logit_capping_method, layer.logit_cap)
        if forward_batch.forward_mode.is_target_verify():
            queries, tree = metadata.max_extend_len, self.topk > 1  # type: ignore[attr-defined]
            reason = reason_against_few_query(heads, cache.k, cache.v, to, queries, None, None, cache.k_scales, cache.v_scales, levels=True)
            if reason is None:
                few_query_attention(
                    heads, cache.k, cache.v, indptr, indices, scale, out=to, queries=queries,
                    tree_mask=metadata.custom_mask if tree else None, tree_mask_indptr=metadata.mask_indptr if tree else None,
                    key_offsets=offsets if tree else None, window=window, soft_cap=cap, checked=True, **beside,
                )  # fmt: skip
                return self._done(out, v_scale)
            if tree:
                raise UnsupportedError(f"a tree of drafts over a quantised KV cache: {reason}; use --speculative-eagle-topk 1")
        elif metadata.custom_mask is not None:
            raise UnsupportedError("a prefill's mask of its own over a quantised KV cache (images without the patch image_masks)")
        if cap:
            raise UnsupportedError(f"a prefill with scores capped at {cap} over a quantised KV cache")
        reason = reason_against_prefill(heads, cache.k, cache.v, cache.k, cache.v, to, cache.k_scales, cache.v_scales, levels=True)
        if reason is not None:
            raise UnsupportedError(f"a prefill over a quantised KV cache: {reason}; use --kv-cache-dtype auto")
        # A verify step sees no image's tokens; what the kernel for masks holds is the last prefill's.
        reach = None if forward_batch.forward_mode.is_target_verify() else self._reach(window)
        flash = flash_of(self)
        like = heads[:, :1].expand(-1, cache.k.shape[1], -1)  # keys' shape and dtype; they are read from the pool
        if (
            flash is not None
            and reach is None
            and flash.wants(heads, like, window)
            and takes("flash_prefill", flash.reason_against(heads, like, like, indices, quantised=True))
        ):
            flash(
                heads, like, like, cache.k, cache.v, metadata.qo_indptr, indptr, indices, scale, out=to,
                longest=metadata.max_extend_len, window=window, **beside,
            )  # fmt: skip
            return self._done(out, v_scale)
        prefill_attention(
            heads, cache.k, cache.v, cache.k, cache.v, metadata.qo_indptr, indptr, indices, scale, out=to,
            longest=metadata.max_extend_len, window=window, reach=reach, checked=True, **beside,
        )  # fmt: skip
        return self._done(out, v_scale)

    def forward_decode(
        self,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        layer: Any,
        forward_batch: Any,
        save_kv_cache: bool = True,
        sinks: Any = None,
        score_mod: Any = None,
        aux_tensors: Any = None,
    ) -> torch.Tensor:
        """Returns ``[requests, heads * value dim]``; arguments as in ``TritonAttnBackend``."""
        refuse(layer, sinks, score_mod, aux_tensors)
        heads = q.reshape(-1, layer.tp_q_head_num, layer.qk_head_dim)
        out = q.new_empty(heads.shape[0], layer.tp_q_head_num * layer.v_head_dim)
        if k is not None and v is not None and save_kv_cache:
            where = KVWriteLoc.for_batch(forward_batch, swa_loc=self.forward_metadata.swa_out_cache_loc)
            self._write(forward_batch, layer, where, k, v)
        cache = cache_of(self.token_to_kv_pool, layer.layer_id)
        to = out.view(-1, layer.tp_q_head_num, layer.v_head_dim)
        reason = reason_against_few_query(heads, cache.k, cache.v, to, 1, None, None, cache.k_scales, cache.v_scales, levels=True)
        if reason is not None:
            raise UnsupportedError(f"decode over a quantised KV cache: {reason}; use --kv-cache-dtype auto")
        _, indptr, indices, _ = self._rail(layer)
        scale, v_scale = self._scales(layer)
        few_query_attention(
            heads, cache.k, cache.v, indptr, indices, scale, out=to, k_scales=cache.k_scales, v_scales=cache.v_scales,
            soft_cap=logit_capping_mod(layer.logit_capping_method, layer.logit_cap), checked=True,
        )  # fmt: skip
        return self._done(out, v_scale)

    def _write(self, forward_batch: Any, layer: Any, where: KVWriteLoc, k: torch.Tensor, v: torch.Tensor) -> None:
        write = self._set_kv_buffer  # type: ignore[attr-defined]
        if layer.k_scale is None or has_scales(self.token_to_kv_pool):
            write(forward_batch, layer, where, k, v)
        else:  # SGLang's pool divides in place
            write(forward_batch, layer, where, k.clone(), v.clone(), layer.k_scale, layer.v_scale)

    def _slots(self, layer: Any, where: KVWriteLoc) -> torch.Tensor:
        """Slots of this layer's new keys."""
        pool = self.token_to_kv_pool
        sliding = isinstance(pool, SWAKVPool) and pool.layers_mapping[layer.layer_id][1]
        slots: torch.Tensor = where.swa_loc if sliding else where.loc
        return slots

    def _rail(self, layer: Any) -> tuple[int, torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """A layer's window (-1: none), the offsets of each request's slots, the slots, and how many keys precede the
        first one."""
        metadata = self.forward_metadata
        if layer.sliding_window_size is None or layer.sliding_window_size < 0:
            return -1, metadata.kv_indptr, metadata.kv_indices, None
        return layer.sliding_window_size, metadata.window_kv_indptr, metadata.window_kv_indices, metadata.window_kv_offsets

    def _scales(self, layer: Any) -> tuple[float, float]:
        """Factors of scores and outputs. A checkpoint's per-tensor scales count only if the pool keeps none of its
        own."""
        if layer.k_scale is None or layer.v_scale is None or has_scales(self.token_to_kv_pool):
            return layer.scaling, 1.0
        return layer.scaling * layer.k_scale_float, layer.v_scale_float

    def _reach(self, window: int) -> torch.Tensor | None:
        """The last new token that each token of a prefill with images sees in a sliding layer."""
        images = self.extend_attention_fwd  # type: ignore[attr-defined]
        batch = images.batch if window >= 0 and isinstance(images, ImageAttention) else None
        return None if batch is None else batch.reach

    def _done(self, out: torch.Tensor, v_scale: float) -> torch.Tensor:
        self.steps += 1
        return out if v_scale == 1.0 else out.mul_(v_scale)


def refuse(layer: Any, sinks: Any, score_mod: Any, aux_tensors: Any) -> None:
    """Refuse what no layer of Gemma 4 asks for.

    Raises:
        UnsupportedError: attention that is not a decoder's causal one, or that has sinks, score modifiers or
            auxiliary tensors.
    """
    causal = layer.attn_type in (None, AttentionType.DECODER) and not layer.is_cross_attention
    if not causal or sinks is not None or score_mod is not None or aux_tensors is not None or layer.xai_temperature_len > 0:
        raise UnsupportedError(
            f"layer {layer.layer_id} over a quantised KV cache: attention of type {layer.attn_type}, cross {layer.is_cross_attention}, "
            f"sinks {sinks is not None}, changed scores {score_mod is not None}, temperature by length {layer.xai_temperature_len}"
        )


# An instance can become one of a subclass that begins with its own class, not with another one.
class QuantisedTriton(TritonAttnBackend, ReadsLevels):  # type: ignore[misc]
    """Backend of a draft, and of a target without the patch triton_window."""

    forward_extend, forward_decode = ReadsLevels.forward_extend, ReadsLevels.forward_decode


class QuantisedGemma4Triton(Gemma4TritonAttnBackend, ReadsLevels):
    """Backend of a target."""

    forward_extend, forward_decode = ReadsLevels.forward_extend, ReadsLevels.forward_decode


# speculative/dflash_utils.py chooses by the backend class's name.
QuantisedTriton.__name__ = QuantisedGemma4Triton.__name__ = TritonAttnBackend.__name__
READERS = {TritonAttnBackend: QuantisedTriton, Gemma4TritonAttnBackend: QuantisedGemma4Triton}
