"""FlashAttention-4 in torch, for tests without a GPU: ``TEST_INSTRUMENTS=flash_standin:install``. A test on a GPU
covers the real one."""

from typing import Any

import torch


def varlen(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    softmax_scale: float,
    causal: bool,
    window_size: tuple[int, int],
    out: torch.Tensor,
) -> None:
    """As ``flash_attn_varlen_func``: a request's last query sees its last key, windows count back from there."""
    assert causal
    assert cu_seqlens_q.dtype == cu_seqlens_k.dtype == torch.int32
    assert k.is_contiguous() or k.stride(-1) == 1
    for request in range(cu_seqlens_q.numel() - 1):
        rows = slice(int(cu_seqlens_q[request]), int(cu_seqlens_q[request + 1]))
        run = slice(int(cu_seqlens_k[request]), int(cu_seqlens_k[request + 1]))
        queries, keys = rows.stop - rows.start, run.stop - run.start
        assert queries <= max_seqlen_q
        assert queries <= keys <= max_seqlen_k
        position = torch.arange(keys - queries, keys)[:, None]
        column = torch.arange(keys)[None, :]
        seen = column <= position
        if window_size != (-1, -1):
            assert window_size[1] == 0
            seen &= column >= position - window_size[0]
        group = q.shape[1] // k.shape[1]
        scores = torch.einsum("qhd,khd->hqk", q[rows].float(), k[run].float().repeat_interleave(group, 1)) * softmax_scale
        weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
        out[rows] = torch.einsum("hqk,khd->qhd", weights, v[run].float().repeat_interleave(group, 1)).to(out.dtype)


PREFIX_KEYS = 256
"""Most cached keys in graphs: a program of the interpreter looks through 16 rows."""


def in_graphs() -> None:
    """As :func:`install`, also in graphs, with a smaller capacity."""
    from sglang_gemma4.attention import fixed_flash

    install()
    fixed_flash.PREFIX_KEYS = PREFIX_KEYS


def failing() -> None:
    """As :func:`in_graphs`, but no graph can contain it."""
    from sglang_gemma4.attention.fixed_flash import FixedFlash

    in_graphs()

    def capture(*_: Any) -> None:
        raise RuntimeError("not while capturing\nand more")

    changed: Any = FixedFlash
    changed.__call__ = capture


def install() -> None:
    """The stand-in under the real one's name, taken for short prefills in float32 too; one line on the log for each layer."""
    from sglang.kernels.ops.attention import flash_attention_v4

    from sglang_gemma4.attention import flash_choice, flash_prefill

    def told(*args: Any, **kwargs: Any) -> None:
        varlen(*args, **kwargs)
        print(f"FLASH {args[0].shape[0]} {args[1].shape[0]}", flush=True)

    flash_attention_v4.flash_attn_varlen_func = told
    flash_prefill.reason_against = lambda: None
    flash_prefill.DTYPES = (torch.float32,)
    flash_prefill.HEAD_DIMS = (16, 32, 64, 128)  # type: ignore[assignment]
    flash_choice.measured = lambda *_: {8: [(1.0, 0.5)]}
