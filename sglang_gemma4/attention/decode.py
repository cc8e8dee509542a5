"""Decode and draft steps of SGLang's triton backend through our kernel, in place of its ``decode_attention_fwd``."""

from collections.abc import Callable
from typing import Any

import torch

from sglang_gemma4.kernels.attention.few_query_attention import few_query_attention
from sglang_gemma4.kernels.attention.limits import reason_against_few_query
from sglang_gemma4.patching import takes

NAME = "decode_attention"


class DecodeAttention:
    """Called by the backend for each layer of a decode step; ``stock`` computes what our kernel does not take.

    Args:
        stock: SGLang's ``decode_attention_fwd``.
        part_keys: keys of the parts that a request is split into by its length alone, so that its output does not
            depend on the batch; None: the batch decides.
    """

    def __init__(self, stock: Callable[..., None], part_keys: int | None = None) -> None:
        self.stock, self.part_keys = stock, part_keys
        self.steps = 0
        """Layers computed here; read by tests."""

    def __call__(
        self,
        q: torch.Tensor,
        k_buffer: torch.Tensor,
        v_buffer: torch.Tensor,
        out: torch.Tensor,
        kv_indptr: torch.Tensor,
        kv_indices: torch.Tensor,
        attn_logits: torch.Tensor,
        attn_lse: torch.Tensor,
        num_kv_splits: torch.Tensor,
        max_kv_splits: int,
        scale: float,
        k_descale: float,
        v_descale: float,
        logit_cap: float = 0.0,
        sinks: Any = None,
        xai_temperature_len: int = -1,
        has_mla: bool = False,
        score_mod: Any = None,
        **others: Any,
    ) -> None:
        """Write ``out`` ``[requests, heads, value dim]``; the arguments are those of SGLang's ``decode_attention_fwd``."""
        reason = reason_against_few_query(q, k_buffer, v_buffer, out, 1, None, None)
        if reason is None and (k_descale != 1.0 or v_descale != 1.0):
            reason = "a KV cache with scales"
        if reason is None and (sinks is not None or xai_temperature_len > 0 or score_mod is not None or has_mla):
            reason = "attention sinks, a temperature by length, a changed score or MLA"
        if takes(NAME, reason, "SGLang's decode kernel decodes"):
            few_query_attention(
                q, k_buffer, v_buffer, kv_indptr, kv_indices, scale, out=out, soft_cap=logit_cap, part_keys=self.part_keys, checked=True
            )
            self.steps += 1
            return
        self.stock(
            q, k_buffer, v_buffer, out, kv_indptr, kv_indices, attn_logits, attn_lse, num_kv_splits, max_kv_splits, scale,
            k_descale, v_descale, logit_cap=logit_cap, sinks=sinks, xai_temperature_len=xai_temperature_len, has_mla=has_mla,
            score_mod=score_mod, **others,
        )  # fmt: skip
