"""Verify steps of SGLang's triton backend through our kernel, at the place SGLang keeps for one (``verify_splitkv_fwd``, on ROCm only)."""

from typing import Any

import torch

from sglang_gemma4.kernels.attention.attention_limits import few_query_reason
from sglang_gemma4.kernels.attention.few_query_attention import few_query_attention
from sglang_gemma4.patching import note

NAME = "verify_attention"


class VerifyAttention:
    """What the backend calls for each layer of a verify step; False leaves the layer to SGLang's extend kernel.

    Args:
        topk: candidates a draft step. With 1 the drafts are a chain, whose tree mask is the causal one and is not read.
    """

    def __init__(self, topk: int) -> None:
        self.topk = topk
        self.done: torch.Tensor | None = None
        """Counters of the parts that a launch joins by itself; None: a second launch joins them."""
        self.steps = 0
        """Layers computed here; a test asks for it."""
        self.declined = 0
        """Layers left to SGLang's kernel."""

    @property
    def reads_keys_only(self) -> bool:
        """Whether all layers so far were chains computed here, which read the slots of keys: no tree mask, no offsets of queries."""
        return self.topk == 1 and self.steps > 0 and self.declined == 0

    def __call__(
        self,
        q: torch.Tensor,
        k_new: torch.Tensor,
        v_new: torch.Tensor,
        out: torch.Tensor,
        k_buffer: torch.Tensor,
        v_buffer: torch.Tensor,
        _qo_indptr: torch.Tensor,
        kv_indptr: torch.Tensor,
        kv_indices: torch.Tensor,
        tree_mask: torch.Tensor | None,
        causal: bool,
        tree_mask_indptr: torch.Tensor | None,
        queries: int,
        k_descale: float,
        v_descale: float,
        scale: float,
        *,
        logit_cap: float,
        sliding_window_size: int,
        sinks: Any,
        window_kv_offsets: torch.Tensor | None,
        xai_temperature_len: int,
        max_bs: int,
    ) -> bool:
        """Write ``out`` ``[requests * queries, heads, value dim]``; the arguments are those of SGLang's ``verify_splitkv_fwd``."""
        requests = q.shape[0] // queries if queries else 0
        reason = few_query_reason(q, k_buffer, v_buffer, out, queries, k_new, v_new)
        if reason is None and not causal:
            reason = "a layer that is not causal"
        if reason is None and (k_descale != 1.0 or v_descale != 1.0):
            reason = "a KV cache with scales"
        if reason is None and (sinks is not None or xai_temperature_len > 0):
            reason = "attention sinks or a temperature by length"
        if reason is None and kv_indptr.numel() <= requests:
            reason = f"{kv_indptr.numel() - 1} rows of metadata for {requests} requests of {queries} tokens"
        if reason is not None:
            note(NAME, f"SGLang's extend kernel verifies: {reason}")
            self.declined += 1
            return False
        tree = self.topk > 1 and tree_mask is not None
        few_query_attention(
            q,
            k_buffer,
            v_buffer,
            kv_indptr,
            kv_indices,
            scale,
            out=out,
            queries=queries,
            k_new=k_new,
            v_new=v_new,
            tree_mask=tree_mask if tree else None,
            tree_mask_indptr=tree_mask_indptr if tree else None,
            key_offsets=window_kv_offsets if tree else None,
            window=sliding_window_size,
            soft_cap=logit_cap,
            done=self.done,
        )
        self.steps += 1
        return True


def update_keys(backend: Any, plan: Any, requests: int, seq_lens: torch.Tensor, req_pool_indices: torch.Tensor) -> None:
    """Of ``_update_target_verify_buffers`` what :class:`VerifyAttention` reads of a chain: which slots hold each request's keys.

    SGLang computes beside it where each request's queries and its rows of the tree mask begin, and copies the mask onto itself: eight
    kernels before every replay of a verify's graph.
    """
    from sglang.srt.layers.attention.triton_backend import update_sliding_window_buffer

    backend._fill_kv_indptr_and_indices(plan, requests, seq_lens, req_pool_indices, backend.cuda_graph_kv_indices)
    if backend.sliding_window_size is not None and backend.sliding_window_size > 0:
        update_sliding_window_buffer(
            backend.window_kv_indptr,
            backend.kv_index_translator,
            plan,
            req_pool_indices,
            backend.sliding_window_size,
            seq_lens[:requests],
            requests,
            token_to_kv_pool=backend.token_to_kv_pool,
            window_kv_indices=backend.cuda_graph_window_kv_indices,
        )
