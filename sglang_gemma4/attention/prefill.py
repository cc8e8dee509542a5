"""Prefill of SGLang's triton backend through our kernel, in the place of its ``extend_attention_fwd``."""

from collections.abc import Callable
from typing import Any

import torch

from sglang_gemma4.kernels.prefill_attention import prefill_attention, reason_against
from sglang_gemma4.patching import note

NAME = "prefill_attention"


class PrefillAttention:
    """What the backend calls for each layer of a prefill; ``stock`` takes what our kernel does not.

    Args:
        stock: SGLang's ``extend_attention_fwd``.
    """

    def __init__(self, stock: Callable[..., None]) -> None:
        self.stock = stock
        self.steps = 0
        """Layers computed here; a test asks for it."""

    def __call__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        out: torch.Tensor,
        k_buffer: torch.Tensor,
        v_buffer: torch.Tensor,
        qo_indptr: torch.Tensor,
        kv_indptr: torch.Tensor,
        kv_indices: torch.Tensor,
        custom_mask: torch.Tensor | None,
        is_causal: bool,
        mask_indptr: torch.Tensor | None,
        max_len_extend: int,
        k_scale: float,
        v_scale: float,
        sm_scale: float | None = None,
        sliding_window_size: int = -1,
        page_size: int = 1,
        extend_seq_lens_cpu: Any = None,
        window_kv_offsets: torch.Tensor | None = None,
        skip_prefix_custom_mask: bool = True,
        **others: Any,
    ) -> None:
        """Write ``out`` ``[tokens, heads, value dim]``; the arguments are those of SGLang's ``extend_attention_fwd``."""
        reason = declined(custom_mask, is_causal, k_scale, v_scale, sm_scale, others)
        if reason is None:
            reason = reason_against(q, k, v, k_buffer, v_buffer, out)
        if reason is None and sm_scale is not None:
            prefill_attention(
                q, k, v, k_buffer, v_buffer, qo_indptr, kv_indptr, kv_indices, sm_scale,
                out=out, longest=max_len_extend, window=sliding_window_size,
            )  # fmt: skip
            self.steps += 1
            return
        note(NAME, f"SGLang's extend kernel prefills: {reason}")
        self.stock(
            q, k, v, out, k_buffer, v_buffer, qo_indptr, kv_indptr, kv_indices, custom_mask, is_causal, mask_indptr, max_len_extend,
            k_scale, v_scale, sm_scale=sm_scale, sliding_window_size=sliding_window_size, page_size=page_size,
            extend_seq_lens_cpu=extend_seq_lens_cpu, window_kv_offsets=window_kv_offsets,
            skip_prefix_custom_mask=skip_prefix_custom_mask, **others,
        )  # fmt: skip


def declined(
    custom_mask: torch.Tensor | None, is_causal: bool, k_scale: float, v_scale: float, sm_scale: float | None, others: dict[str, Any]
) -> str | None:
    """Why a call is not ours, or None; ``others`` are arguments of which only the defaults are taken."""
    if custom_mask is not None or not is_causal:
        return "a mask of its own (an image, a tree of drafts), or a layer that is not causal"
    if k_scale != 1.0 or v_scale != 1.0:
        return "a KV cache with scales"
    if sm_scale is None:
        return "no scale of the scores is given"
    asked = sorted(name for name, value in others.items() if not (value is None or value is False or value in (0, -1)))
    return f"{', '.join(asked)} asked for" if asked else None
