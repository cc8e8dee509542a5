"""MTP's verify step on triton: queries and heads of a KV head in one tile, keys split over programs."""

from typing import Any

from sglang_gemma4.models.config_files import named_gemma4
from sglang_gemma4.patching import Hook, Patch, uses


def take_verify(_result: None, backend: Any, runner: Any, *_args: Any, **_kwargs: Any) -> None:
    """After ``TritonAttnBackend.__init__``: a Gemma 4 target that verifies drafts. Deterministic inference verifies as it prefills."""
    if runner.is_draft_worker or not backend.topk or backend.enable_deterministic or not named_gemma4(runner.model_config.hf_config):
        return
    from sglang_gemma4.attention.verify import VerifyAttention

    backend.use_verify_shared_kv, backend.use_verify_splitkv = False, True
    backend.verify_splitkv_fwd = VerifyAttention(backend.topk)


PATCH = Patch(
    switch="SGLANG_GEMMA4_ATTENTION",
    why="Stock verifies with its prefill kernel: one program a request and query head walks all keys, half of an MTP step at batch 32.",
    evidence="runs/2026-11-21-26b-stock-steps (_fwd_kernel: 16.5 of 34 ms) · srt/layers/attention/triton_backend.py:238 (gfx95 only) · "
    "the kernel alone 5 to 28 times as fast · H200, 26B-A4B, with decode_attention and prefill_attention: steps of 7.1, 19.5 and 23.9 ms "
    "at batch 1, 32 and 64, stock 12.1, 35.3 and 55.6, runs/2026-11-22-26b-kernels-steps · without it the package loses 24, 11, 28 and 41 "
    "% of a step behind 300 tokens at batch 1, 8, 32 and 64, runs/2026-11-23-26b-pieces · its tile and parts: "
    "runs/2026-11-26-attention-parts",
    remove_when="SGLang's verify_splitkv takes sliding windows and runs on CUDA.",
    uses=(uses.speculation, uses.triton_decode, uses.kernels, uses.any_batch),
    hooks=(Hook("sglang.srt.layers.attention.triton_backend.TritonAttnBackend.__init__", "after", take_verify, "e7fa3a24cfc9"),),
)
