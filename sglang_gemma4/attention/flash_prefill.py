"""Long prefills of the triton backend through SGLang's FlashAttention-4, over keys in order.

``--prefill-attention-backend fa4`` reads the KV cache by page, for which its Hopper kernel gives up bulk copies of keys (TMA), and it makes
the attention a pair of backends. Here the backend and the pool stay as they are: new tokens have their keys in order already, and where
they have a prefix its keys are put before them (:mod:`kernels.key_rows`), which moves megabytes beside the teraflops of the attention.
Which of the two is faster is not measured yet.
"""

import time
from collections.abc import Callable
from typing import Any

import torch

from sglang_gemma4.kernels.key_rows import key_rows

LEAST_TOKENS = 1024
"""New tokens of a batch from which on it is taken: below, the launch of a kernel made for long ones does not pay. Not yet measured."""
MOST_GATHERED_BYTES = 1 << 30
CAPABILITY = 9
"""Major: SGLang's kernel takes both of these head dimensions on Hopper alone."""
HEAD_DIMS = (256, 512)
DTYPES: tuple[torch.dtype, ...] = (torch.bfloat16, torch.float16)


class FlashPrefill:
    """Attention of a prefill's layer; ``attend`` is SGLang's ``flash_attn_varlen_func``."""

    def __init__(self, attend: Callable[..., Any]) -> None:
        self.attend = attend
        self.steps = 0
        """Layers computed here; a test asks for it."""

    def reason_against(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, kv_indices: torch.Tensor) -> str | None:
        """Why a layer of a long prefill is not taken, or None."""
        if q.dtype not in DTYPES or k.dtype != q.dtype:
            return f"q is {q.dtype}, k {k.dtype}; one of {', '.join(map(str, DTYPES))} is taken"
        if q.shape[2] not in HEAD_DIMS or v.shape[2] != q.shape[2]:
            return f"head dimensions are {q.shape[2]} and {v.shape[2]}; {' or '.join(map(str, HEAD_DIMS))} for both is taken"
        rows = k.shape[0] + kv_indices.numel() if kv_indices.numel() else 0
        gathered = rows * k.shape[1] * (k.shape[2] + v.shape[2]) * k.element_size()
        if gathered > MOST_GATHERED_BYTES:
            return f"a batch's keys in order would take more than {MOST_GATHERED_BYTES / 2**30:.0f} GiB"
        return None

    def __call__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        k_buffer: torch.Tensor,
        v_buffer: torch.Tensor,
        qo_indptr: torch.Tensor,
        kv_indptr: torch.Tensor,
        kv_indices: torch.Tensor,
        scale: float,
        *,
        out: torch.Tensor,
        longest: int,
        window: int = -1,
    ) -> None:
        """Write ``out``; the arguments are those of ``kernels.prefill_attention``."""
        starts, keys, values, most = qo_indptr, k, v, longest
        if kv_indices.numel():
            keys, values = key_rows(k, v, k_buffer, v_buffer, qo_indptr, kv_indptr, kv_indices)
            starts, most = qo_indptr + kv_indptr[: qo_indptr.numel()], longest + kv_indices.numel()
        self.attend(
            q, keys, values,
            cu_seqlens_q=qo_indptr.int(),
            cu_seqlens_k=starts.int(),
            max_seqlen_q=longest,
            max_seqlen_k=most,
            softmax_scale=scale,
            causal=True,
            window_size=(window, 0) if window >= 0 else (-1, -1),
            out=out,
        )  # fmt: skip
        self.steps += 1

    def warm(self, kinds: set[tuple[int, int, int, int]], dtype: torch.dtype, device: str) -> float:
        """Compile for each kind of layer, so that no request waits for it; seconds it took.

        Args:
            kinds: query heads, KV heads, head dimension and window (-1: none) of each.
        """
        began = time.monotonic()
        out = torch.empty(0)
        indptr = torch.tensor([0, 160, 416], dtype=torch.int32, device=device)
        none = torch.zeros(3, dtype=torch.int32, device=device)
        for heads, kv_heads, dim, window in sorted(kinds):
            q = torch.zeros(416, heads, dim, dtype=dtype, device=device)
            k = torch.zeros(416, kv_heads, dim, dtype=dtype, device=device)
            out = torch.empty_like(q)
            for slots in (none[:0], none[:2].long()):
                prefix = none if slots.numel() == 0 else torch.tensor([0, 1, 2], dtype=torch.int32, device=device)
                self(q, k, k, k, k, indptr, prefix, slots, 1.0, out=out, longest=256, window=window)
        if out.is_cuda:
            torch.cuda.synchronize()
        self.steps = 0
        return time.monotonic() - began


def problem() -> str | None:
    """Why this process cannot prefill so, or None."""
    if not torch.cuda.is_available():
        return "there is no CUDA card"
    major, minor = torch.cuda.get_device_capability()
    if major != CAPABILITY:
        return f"the card's compute capability is {major}.{minor}; {CAPABILITY}.x is taken"
    from sglang.kernels.ops.attention import flash_attention_v4

    if flash_attention_v4._flash_attn_varlen_func is None:
        return f"FlashAttention-4 cannot be imported: {flash_attention_v4._flash_attn_import_error}"
    return None


def kinds_of(model: torch.nn.Module) -> set[tuple[int, int, int, int]]:
    """Query heads, KV heads, head dimension and window (-1: none) of a model's layers on this rank."""
    from sglang.srt.layers.radix_attention import RadixAttention

    layers: list[Any] = [module for module in model.modules() if isinstance(module, RadixAttention)]
    return {
        (layer.tp_q_head_num, layer.tp_k_head_num, layer.qk_head_dim, window if (window := layer.sliding_window_size or -1) > 0 else -1)
        for layer in layers
    }
