"""SGLang's attention interface over the torch kernels in ``attention``."""

from collections.abc import Callable
from typing import Any

import torch
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
from sglang.srt.layers.radix_attention import AttentionType, RadixAttention
from sglang.srt.mem_cache.kv_loc_plan import IdSpaceKind
from sglang.srt.mem_cache.memory_pool import KVWriteLoc
from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool
from sglang.srt.model_executor.forward_batch_info import ForwardBatch
from sglang.srt.model_executor.forward_context import get_attn_backend

from sglang_gemma4.attention import image_spans
from sglang_gemma4.attention.quantised_pool import has_scales
from sglang_gemma4.cpu.attention import Batch, Block, attend, plan
from sglang_gemma4.cpu.tree import square_mask


class Gemma4CpuAttention(AttentionBackend):
    """Exact float32 attention for prefill, decode, draft and verify.

    Nothing about the KV pool is stored: the frozen-KV draft swaps the target's pool into ``token_to_kv_pool`` during a
    forward.
    """

    def __init__(self, model_runner: Any) -> None:
        super().__init__()
        self.device = model_runner.device
        self.req_to_token_pool = model_runner.req_to_token_pool
        self.token_to_kv_pool = model_runner.token_to_kv_pool
        self.kv_index_translator = model_runner.kv_index_translator
        self.max_context_len = model_runner.model_config.context_len
        self.reads_target = bool(model_runner.is_draft_worker and model_runner.spec_algorithm.is_frozen_kv_mtp())
        self.images_attend_both_ways = image_spans.bidirectional(model_runner.model_config.hf_config)
        self.batch: Batch | None = None
        self.image_reach: torch.Tensor | None = None
        self.plans: dict[tuple[int | None, int | None, bool], list[Block]] = {}

    def init_forward_metadata(self, forward_batch: ForwardBatch) -> None:
        """Describe the batch; blocks are planned when a layer first needs them."""
        self.begin(forward_batch)

    def begin(self, forward_batch: ForwardBatch, ahead: int = 0) -> None:
        """Describe the batch; ``ahead``: keys of a decode step that ``seq_lens`` lacks, such as a draft's own."""
        self.plans = {}
        self.image_reach = None
        mode = forward_batch.forward_mode
        if mode.is_idle():
            self.batch = None
            return
        key_lens = forward_batch.seq_lens.long()
        tree = None
        if mode.is_target_verify():
            spec = forward_batch.spec_info
            width = spec.draft_token_num
            if spec.custom_mask is not None:  # DFlash's block has none: it is a chain
                tree = square_mask(spec.custom_mask, key_lens, width)
            query_lens = torch.full_like(key_lens, width)
            key_lens = key_lens + width
        elif mode.is_decode():
            key_lens, query_lens = key_lens + ahead, torch.ones_like(key_lens)
        else:
            query_lens = forward_batch.extend_seq_lens.long()
            if self.images_attend_both_ways and forward_batch.mm_inputs is not None:
                self.image_reach = image_spans.reach(
                    [image_spans.of_inputs(inputs) for inputs in forward_batch.mm_inputs], key_lens, query_lens
                )
        self.batch = Batch(
            request_rows=forward_batch.req_pool_indices.long(),
            slot_table=self.req_to_token_pool.req_to_token,
            key_lens=key_lens,
            query_lens=query_lens,
            tree=tree,
        )

    def forward_extend(
        self,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        layer: RadixAttention,
        forward_batch: ForwardBatch,
        save_kv_cache: bool = True,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """[tokens, heads * head_dim] from queries of the same shape; new keys are written to the pool first."""
        if sinks is not None or layer.is_cross_attention or layer.attn_type not in (AttentionType.DECODER, AttentionType.ENCODER_ONLY):
            raise ValueError(
                f"the CPU reference engine serves Gemma 4's decoder attention and DFlash's; layer {layer.layer_id} has "
                f"attn_type={layer.attn_type}, cross_attention={layer.is_cross_attention}, sinks={sinks is not None}"
            )
        pool = self.token_to_kv_pool
        if save_kv_cache and k is not None and v is not None:
            self._write(layer, forward_batch, k, v)
        k_scales, v_scales = pool.get_kv_scale_buffer(layer.layer_id) if has_scales(pool) else (None, None)
        out = attend(
            q.reshape(-1, layer.tp_q_head_num, layer.qk_head_dim),
            pool.get_key_buffer(layer.layer_id),
            pool.get_value_buffer(layer.layer_id),
            self._blocks(layer),
            layer.scaling,
            layer.logit_cap,
            (layer.k_scale_float or 1.0) if k_scales is None else 1.0,
            (layer.v_scale_float or 1.0) if v_scales is None else 1.0,
            k_scales,
            v_scales,
        )
        return out.flatten(1)

    forward_decode = forward_extend

    def _write(self, layer: RadixAttention, forward_batch: ForwardBatch, k: torch.Tensor, v: torch.Tensor) -> None:
        locations, sliding = forward_batch.out_cache_loc, self._translated(layer.layer_id)
        if self.kv_index_translator.is_translating:
            written = self.kv_index_translator.write_ids(forward_batch, IdSpaceKind.SLIDING_WINDOW) if sliding else None
            where = KVWriteLoc.for_batch(forward_batch, swa_loc=written)
        else:
            where = KVWriteLoc(locations, sliding.translate_loc_from_full_to_swa(locations) if sliding else None)
        if layer.k_scale is None or has_scales(self.token_to_kv_pool):
            self.token_to_kv_pool.set_kv_buffer(layer, where, k, v)
        else:  # the pool divides in place where it stores another dtype
            self.token_to_kv_pool.set_kv_buffer(layer, where, k.clone(), v.clone(), layer.k_scale, layer.v_scale)

    def _translated(self, layer_id: int) -> SWAKVPool | None:
        """The pool, if this layer's keys are in its sliding part, which has its own slot numbers."""
        pool = self.token_to_kv_pool
        return pool if isinstance(pool, SWAKVPool) and pool.layers_mapping[layer_id][1] else None

    def _blocks(self, layer: RadixAttention) -> list[Block]:
        if self.batch is None:
            return []
        # SGLang's window does not count the query itself, transformers' does. An assistant's query has no key in the pool: it
        # reads window - 1 keys, and the one before them may already be freed.
        own_key = 0 if self.reads_target else 1
        window = layer.sliding_window_size + own_key if layer.sliding_window_size > -1 else None
        sliding = self._translated(layer.layer_id)
        both_ways = layer.attn_type == AttentionType.ENCODER_ONLY  # within a block of DFlash
        key = (window, None if sliding is None else id(sliding), both_ways)
        if key not in self.plans:
            # Images attend both ways on sliding layers only (transformers' create_masks_for_vision_model).
            self.batch.reach = None if window is None else self.image_reach
            if both_ways:
                self.batch.reach = torch.repeat_interleave(self.batch.key_lens - 1, self.batch.query_lens)
            self.plans[key] = plan(self.batch, window, self._translation(sliding))
        return self.plans[key]

    def _translation(self, sliding: SWAKVPool | None) -> Callable[[torch.Tensor], torch.Tensor] | None:
        """Maps a request's slots to those of the pool that a layer reads; None if they are the same.

        A unified pool has tables of its own for full and sliding layers, which change from step to step.
        """
        translator = self.kv_index_translator
        if translator.is_translating:
            translate: Callable[[torch.Tensor], torch.Tensor] = translator.space(
                IdSpaceKind.FULL if sliding is None else IdSpaceKind.SLIDING_WINDOW
            ).write
            return translate
        return None if sliding is None else sliding.translate_loc_from_full_to_swa

    def support_triton(self) -> bool:
        return False

    def get_cpu_graph_seq_len_fill_value(self) -> int:
        """Keys of a request that only pads a batch: other attention groups have more."""
        return 1


def draft_backend(original: Callable[..., Any], worker: Any) -> Any:
    """Around ``FrozenKVMTPDraftWorker._init_draft_attn_backend``: topk > 1 uses the same backend as topk = 1.

    The draft writes no KV, so its ``requests * topk`` rows are an ordinary decode batch.
    """
    backend = worker.draft_model_runner.attn_backend
    return backend if isinstance(backend, Gemma4CpuAttention) else original(worker)


def image_masks(original: Callable[..., Any], model: Any, forward_batch: Any, *args: Any, **kwargs: Any) -> Any:
    """Around ``prepare_attn_masks``: this backend reads image spans from the batch and needs no masks."""
    return None if isinstance(get_attn_backend(), Gemma4CpuAttention) else original(model, forward_batch, *args, **kwargs)
