"""Prefills of SGLang's triton backend through our kernel, in place of its ``extend_attention_fwd``."""

from collections.abc import Callable
from typing import Any

import torch

from sglang_gemma4.attention import flash_prefill
from sglang_gemma4.kernels.attention.limits import reason_against_prefill
from sglang_gemma4.kernels.attention.prefill_attention import prefill_attention
from sglang_gemma4.patching import takes

NAME, INSTEAD = "prefill_attention", "SGLang's extend kernel prefills"


class PrefillAttention:
    """Called by the backend for each layer of a prefill; ``stock`` computes what our kernel does not take.

    Args:
        stock: SGLang's ``extend_attention_fwd``.
    """

    def __init__(self, stock: Callable[..., None]) -> None:
        self.stock = stock
        self.flash: flash_prefill.FlashPrefill | None = None
        """Takes long prefills without images, if the patch flash_prefill set it."""
        self.steps = 0
        """Layers computed here; read by tests."""

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
        tensors = (q, k, v, out, k_buffer, v_buffer, qo_indptr, kv_indptr, kv_indices)
        reason = declined(custom_mask, is_causal, k_scale, v_scale, sm_scale, others) or self.attend(
            tensors, max_len_extend, sm_scale or 1.0, sliding_window_size
        )
        if takes(NAME, reason, INSTEAD):
            return
        self.stock(
            *tensors, custom_mask, is_causal, mask_indptr, max_len_extend, k_scale, v_scale, sm_scale=sm_scale,
            sliding_window_size=sliding_window_size, page_size=page_size, extend_seq_lens_cpu=extend_seq_lens_cpu,
            window_kv_offsets=window_kv_offsets, skip_prefix_custom_mask=skip_prefix_custom_mask, **others,
        )  # fmt: skip

    def attend(
        self, tensors: tuple[torch.Tensor, ...], longest: int, scale: float, window: int, reach: torch.Tensor | None = None
    ) -> str | None:
        """Compute a layer with :func:`prefill_attention`, or say why it does not take it; then nothing is written.

        Args:
            tensors: q, k, v, out, k_buffer, v_buffer, qo_indptr, kv_indptr and kv_indices, as :func:`prefill_attention` has them.
        """
        q, k, v, out, k_buffer, v_buffer, qo_indptr, kv_indptr, kv_indices = tensors
        reason = reason_against_prefill(q, k, v, k_buffer, v_buffer, out)
        flash = self.flash if reason is None and reach is None else None
        if flash and flash.wants(q, k, window) and takes("flash_prefill", flash.reason_against(q, k, v, kv_indices)):
            flash(q, k, v, k_buffer, v_buffer, qo_indptr, kv_indptr, kv_indices, scale, out=out, longest=longest, window=window)
            return None
        if reason is None:
            prefill_attention(
                q, k, v, k_buffer, v_buffer, qo_indptr, kv_indptr, kv_indices, scale,
                out=out, longest=longest, window=window, reach=reach, checked=True,
            )  # fmt: skip
            self.steps += 1
        return reason


def declined(
    custom_mask: torch.Tensor | None, is_causal: bool, k_scale: float, v_scale: float, sm_scale: float | None, others: dict[str, Any]
) -> str | None:
    """Why our kernel does not take a call, or None; arguments in ``others`` must have their defaults."""
    if custom_mask is not None or not is_causal:
        return "a mask of its own (a tree of drafts, or images without the patch image_masks), or a layer that is not causal"
    if k_scale != 1.0 or v_scale != 1.0:
        return "a KV cache with scales"
    if sm_scale is None:
        return "no scale of the scores is given"
    asked = sorted(name for name, value in others.items() if not _is_default(value))
    return f"{', '.join(asked)} asked for" if asked else None


def _is_default(value: Any) -> bool:
    """Whether an argument that our kernel lacks has its default; a tensor never does."""
    return value is None or (isinstance(value, (bool, int, float)) and value in (False, 0, -1))
