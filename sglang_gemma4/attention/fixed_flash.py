"""FlashAttention-4 of prompts inside a CUDA graph: keys in order at fixed addresses, wherever a replay's prompts
begin and end.

What its interface does on the host follows from shapes alone. The grid follows from the rows of ``q`` and the number
of requests; which kernel is compiled depends on neither. The device reads where requests begin and end. Requests
without rows get no program, and rows after the last request are not written. It keeps no counters from call to call.
"""

from collections.abc import Sequence
from typing import Any

import torch

from sglang_gemma4.attention.flash_limits import IN_GRAPHS
from sglang_gemma4.attention.flash_limits import PREFIX_KEYS as PREFIX_KEYS
from sglang_gemma4.attention.flash_prefill import MOST_GATHERED_BYTES, FlashPrefill, Kind
from sglang_gemma4.kernels.attention.key_rows import key_rows

NAME = IN_GRAPHS


class FixedFlash:
    """Computes the full layers' attention of prompts in graphs of ``least`` rows and more; all graphs and layers
    share the buffers.

    Args:
        flash: the prefill's FlashAttention-4, with its choice of layers and sizes.
        kind: shape of the full layers, one of those that ``flash`` takes.
        rows: rows of the largest graph.
        prompts: most requests of a forward.
        prefix_keys: most cached keys of these requests together.
    """

    def __init__(
        self, flash: FlashPrefill, kind: Kind, rows: int, prompts: int, prefix_keys: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.flash, self.kind, self.least, self.prefix_keys = flash, kind, flash.least[kind], prefix_keys
        self.keys, self.values = (torch.zeros(rows + prefix_keys, kind.kv_heads, kind.dim, dtype=dtype, device=device) for _ in range(2))
        self.starts = torch.zeros(prompts + 1, dtype=torch.int32, device=device)
        """Where each prompt's keys begin in the buffers. As many rows as there are running requests come first, and
        hold nothing."""

    def fill(self, starts: torch.Tensor, offsets: torch.Tensor) -> None:
        """Set up the next replay: ``[prompts + 1]`` int32 each, where the prompts' rows begin in the forward, and
        their cached keys' slots."""
        torch.add(starts, offsets, out=self.starts)

    def __call__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        k_buffer: torch.Tensor,
        v_buffer: torch.Tensor,
        starts: torch.Tensor,
        offsets: torch.Tensor,
        slots: torch.Tensor,
        scale: float,
        out: torch.Tensor,
        **levels: torch.Tensor | None,
    ) -> None:
        """Write the prompts' rows of ``out``; the arguments are those of ``kernels.prefill_attention``. ``levels``:
        for a quantised cache, the arguments of :func:`key_rows` for it.
        """
        room = q.shape[0] + self.prefix_keys  # a smaller graph looks through fewer rows
        keys, values = self.keys[:room], self.values[:room]
        key_rows(k, v, k_buffer, v_buffer, starts, offsets, slots, out=(keys, values), **levels)
        self.flash.attend(
            q, keys, values,
            cu_seqlens_q=starts,
            cu_seqlens_k=self.starts,
            max_seqlen_q=q.shape[0],
            max_seqlen_k=room,
            softmax_scale=scale,
            causal=True,
            window_size=(-1, -1),
            out=out,
        )  # fmt: skip
        self.flash.steps += 1


def reason_against(flash: FlashPrefill | None, kinds: Sequence[Kind], rows: int, prefix_keys: int, dtype: torch.dtype) -> str | None:
    """Why our kernel computes the prompts' full layers in all graphs, or None.

    Args:
        flash: FlashAttention-4 of the server's prefills, None if they have none.
        kinds: shapes of the full layers, each once.
        rows: rows of the largest graph.
    """
    if flash is None:
        return "FlashAttention-4 takes no prefill here (flash_prefill)"
    if len(kinds) != 1:
        return f"there are {len(kinds)} kinds of layers without a window, not one"
    kind = kinds[0]
    least = flash.least.get(kind)
    if least is None:
        return f"our kernel was measured to be as fast for layers of {kind}"
    if least > rows:
        return f"FlashAttention-4 is faster from {least} rows on, the largest graph has {rows}"
    if buffer_bytes(kind, rows, prefix_keys, dtype) > MOST_GATHERED_BYTES:
        return f"the keys of {rows + prefix_keys} rows in order would take more than {MOST_GATHERED_BYTES / 2**30:.0f} GiB"
    return None


def buffer_bytes(kind: Kind, rows: int, prefix_keys: int, dtype: torch.dtype) -> int:
    """Bytes of the buffers that :class:`FixedFlash` holds."""
    return int(2 * (rows + prefix_keys) * kind.kv_heads * kind.dim * dtype.itemsize)


def flash_of(backend: Any) -> FlashPrefill | None:
    """FlashAttention-4 as a triton backend's prefills use it, also if wrapped by the masking of images; or None."""
    kernel = getattr(backend, "extend_attention_fwd", None)
    found: FlashPrefill | None = getattr(getattr(kernel, "inner", kernel), "flash", None)
    return found
