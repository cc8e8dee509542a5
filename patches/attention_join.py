"""Verify, draft and decode attention in one launch: the program that is last joins the parts of the keys."""

from typing import Any

from sglang_gemma4.patching import Hook, Patch


def join_inside(_result: None, backend: Any, *_args: Any, **_kwargs: Any) -> None:
    """After ``TritonAttnBackend.__init__`` and our kernels' taking it over.

    Each backend has counters of its own, made before any graph is captured. What SGLang may run on two streams at once (multiplexed prefill
    and decode; two-batch overlap keeps its attention on one) it gives backends of their own too.
    """
    from sglang_gemma4.attention.decode import DecodeAttention
    from sglang_gemma4.attention.verify import VerifyAttention

    for attention in (backend.decode_attention_fwd, backend.verify_splitkv_fwd):
        if isinstance(attention, (DecodeAttention, VerifyAttention)):
            import torch

            from sglang_gemma4.kernels.attention.key_parts import counters

            attention.done = counters(torch.device(backend.device))


PATCH = Patch(
    name="attention_join",
    switch="SGLANG_GEMMA4_ATTENTION_JOIN",
    why="Joining the parts is a launch in every layer, and at large batches, where a request has one part, no more than a copy.",
    evidence="runs/2026-11-22-26b-mtp-steps (_join_kernel: 45 launches, 122 µs of a step at batch 1, 222 µs at batch 64)",
    remove_when="With verify_attention and decode_attention, whose kernel it is.",
    hooks=(Hook("sglang.srt.layers.attention.triton_backend.TritonAttnBackend.__init__", "after", join_inside, "e7fa3a24cfc9"),),
)
