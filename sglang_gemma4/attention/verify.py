"""Verify steps of SGLang's triton backend through our kernel, as its ``verify_splitkv_fwd``, which SGLang itself sets on ROCm only."""

from collections.abc import Callable
from typing import Any

import torch

from sglang_gemma4.kernels.attention.few_query_attention import few_query_attention
from sglang_gemma4.kernels.attention.limits import reason_against_few_query
from sglang_gemma4.patching import takes

NAME = "verify_attention"


class VerifyAttention:
    """Called by the backend for each layer of a verify step; False leaves the layer to SGLang's extend kernel.

    Args:
        topk: candidates a draft step. With 1 the drafts are a chain: its tree mask is the causal one, and is not read.
    """

    def __init__(self, topk: int) -> None:
        self.topk = topk
        self.chain_kernel: Callable[..., None] | None = None
        """SGLang's ``extend_attention_fwd`` itself, where chains have no mask (patch ``step_metadata``). It computes
        a layer that our kernel does not take: the wrapper around it would take a layer without a mask for a
        prefill's."""
        self.steps = 0
        """Layers computed here; read by tests."""

    def __call__(
        self,
        q: torch.Tensor,
        k_new: torch.Tensor,
        v_new: torch.Tensor,
        out: torch.Tensor,
        k_buffer: torch.Tensor,
        v_buffer: torch.Tensor,
        qo_indptr: torch.Tensor,
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
        reason = reason_against_few_query(q, k_buffer, v_buffer, out, queries, k_new, v_new)
        if reason is None and not causal:
            reason = "a layer that is not causal"
        if reason is None and (k_descale != 1.0 or v_descale != 1.0):
            reason = "a KV cache with scales"
        if reason is None and (sinks is not None or xai_temperature_len > 0):
            reason = "attention sinks or a temperature by length"
        if reason is None and kv_indptr.numel() <= requests:
            reason = f"{kv_indptr.numel() - 1} rows of metadata for {requests} requests of {queries} tokens"
        if not takes(NAME, reason, "SGLang's extend kernel verifies"):
            if self.chain_kernel is None or tree_mask is not None:
                return False
            self.chain_kernel(
                q, k_new, v_new, out, k_buffer, v_buffer, qo_indptr, kv_indptr, kv_indices, None, causal, None, queries,
                k_descale, v_descale, scale, logit_cap=logit_cap, sliding_window_size=sliding_window_size, sinks=sinks,
                window_kv_offsets=window_kv_offsets, xai_temperature_len=xai_temperature_len,
            )  # fmt: skip
            return True
        tree = self.topk > 1 and tree_mask is not None
        few_query_attention(
            q, k_buffer, v_buffer, kv_indptr, kv_indices, scale, out=out, queries=queries, k_new=k_new, v_new=v_new,
            tree_mask=tree_mask if tree else None, tree_mask_indptr=tree_mask_indptr if tree else None,
            key_offsets=window_kv_offsets if tree else None, window=sliding_window_size, soft_cap=logit_cap, checked=True,
        )  # fmt: skip
        self.steps += 1
        return True
