"""Long prefills of the triton backend through SGLang's FlashAttention-4, over keys in order.

``--prefill-attention-backend fa4`` reads the KV cache by page, for which its Hopper kernel gives up bulk copies of
keys (TMA), and it makes the attention a pair of backends. Here backend and pool stay as they are. The keys of new
tokens are in order already, and those of a prefix are copied before them (:mod:`kernels.attention.key_rows`):
megabytes, next to the attention's teraflops. With a quantised cache all keys are copied, because every later step
reads the cached ones. Each layer shape uses FlashAttention-4 or our own kernel, whichever was faster on this GPU at
the start, over keys in the model's dtype (:mod:`attention.flash_choice`).
"""

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from sglang_gemma4.kernels.attention.key_rows import key_rows

SWITCH = "SGLANG_GEMMA4_FLASH_PREFILL"
MOST_GATHERED_BYTES = 1 << 30
CAPABILITY = 9
"""Major compute capability: SGLang's kernel takes both of these head dimensions on Hopper only."""
HEAD_DIMS = (256, 512)
DTYPES: tuple[torch.dtype, ...] = (torch.bfloat16, torch.float16)


class Kind(NamedTuple):
    """The shape of an attention layer on one rank."""

    heads: int
    kv_heads: int
    dim: int
    window: int  # -1: none

    def __str__(self) -> str:
        seen = f"window {self.window}" if self.window >= 0 else "no window"
        return f"{self.heads}/{self.kv_heads} heads of {self.dim}, {seen}"


class FlashPrefill:
    """Computes attention in a layer of a long prefill.

    Args:
        attend: SGLang's ``flash_attn_varlen_func``.
        least: by layer shape, the fewest new tokens of a batch for which FlashAttention-4 is used; never for shapes
            that are absent.
    """

    def __init__(self, attend: Callable[..., Any], least: dict[Kind, int] | None = None) -> None:
        self.attend = attend
        self.least = least or {}
        self.steps = 0
        """Layers computed here; read by tests."""

    def wants(self, q: torch.Tensor, k: torch.Tensor, window: int) -> bool:
        """Whether a layer's prefill is long enough for this to be faster than our kernel."""
        least = self.least.get(Kind(q.shape[1], k.shape[1], q.shape[2], max(window, -1)))
        return least is not None and q.shape[0] >= least

    def reason_against(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, kv_indices: torch.Tensor, quantised: bool = False
    ) -> str | None:
        """Why FlashAttention-4 does not take a layer of a long prefill, or None. ``quantised``: new tokens' keys are
        copied from the cache too."""
        if q.dtype not in DTYPES or k.dtype != q.dtype:
            return f"q is {q.dtype}, k {k.dtype}; one of {', '.join(map(str, DTYPES))} is supported"
        if q.shape[2] not in HEAD_DIMS or v.shape[2] != q.shape[2]:
            return f"head dimensions are {q.shape[2]} and {v.shape[2]}; {' or '.join(map(str, HEAD_DIMS))} for both is supported"
        rows = k.shape[0] + kv_indices.numel() if quantised or kv_indices.numel() else 0
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
        **levels: torch.Tensor | None,
    ) -> None:
        """Write ``out``; the arguments are those of ``kernels.prefill_attention``. ``levels``: for a quantised cache,
        the arguments of :func:`key_rows` for it."""
        starts, keys, values, most = qo_indptr, k, v, longest
        if levels or kv_indices.numel():
            keys, values = key_rows(k, v, k_buffer, v_buffer, qo_indptr, kv_indptr, kv_indices, **levels)
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


def reason_against() -> str | None:
    """Why this process cannot prefill through FlashAttention-4, or None."""
    if not torch.cuda.is_available():
        return "there is no CUDA GPU"
    major, minor = torch.cuda.get_device_capability()
    if major != CAPABILITY:
        return f"the GPU's compute capability is {major}.{minor}; {CAPABILITY}.x is supported"
    from sglang.kernels.ops.attention import flash_attention_v4

    if flash_attention_v4._flash_attn_varlen_func is None:
        return f"FlashAttention-4 cannot be imported: {flash_attention_v4._flash_attn_import_error}"
    return None


def unused_by(runner: Any, reads_levels: bool = False) -> str | None:
    """Why no prefill of this server would use FlashAttention-4, so that nothing is compiled and measured; or None.

    ``reads_levels``: the attention backend is one of :mod:`attention.quantised`.
    """
    from sglang.srt.runtime_context import get_disagg, get_exec

    if get_disagg().disaggregation_mode == "decode":
        return "--disaggregation-mode decode: another server prefills"
    if get_exec().deterministic.enable_deterministic_inference:
        return "--enable-deterministic-inference has a prefill of its own"
    if runner.kv_cache_dtype != runner.dtype:
        if not reads_levels:
            return f"the KV cache is {runner.kv_cache_dtype}, the model {runner.dtype}"
        if not os.environ.get(SWITCH, "").strip():
            return f"over a quantised KV cache it was on no GPU yet ({SWITCH}=1 turns it on)"
    return None


def kinds_of(model: torch.nn.Module) -> frozenset[Kind]:
    """The shapes of a model's attention layers, each once."""
    from sglang.srt.layers.radix_attention import RadixAttention

    layers: list[Any] = [module for module in model.modules() if isinstance(module, RadixAttention)]
    return frozenset(
        Kind(layer.tp_q_head_num, layer.tp_k_head_num, layer.qk_head_dim, window if (window := layer.sliding_window_size or -1) > 0 else -1)
        for layer in layers
    )
