"""SGLang's fp8 KV cache is read by this package's attention where no layers share KV, too."""

from typing import Any

from sglang_gemma4.patching import Hook, Patch, uses


def read_levels(_result: None, backend: Any, runner: Any, *_args: Any, **_kwargs: Any) -> None:
    """After ``TritonAttnBackend.__init__`` and ``kv_formats``, which leaves such a target to SGLang's kernels."""
    from sglang_gemma4.patches import kv_formats

    config = runner.model_config.hf_config
    if kv_formats.readable(backend, runner) and not runner.is_draft_worker and not kv_formats.unmasked(config):
        kv_formats.take(backend)


PATCH = Patch(
    switch="SGLANG_GEMMA4_ATTENTION",
    why="SGLang's extend kernel verifies over an fp8 cache, and reads K and V once for every query head: 58.9 ms a step of 16 requests of "
    "32,768 tokens, where bfloat16 takes 20.4.",
    evidence="runs/2026-11-26-26b-h200-kv-formats (stock's fp8_e4m3) · tests/gpu/test_kv_formats_gpu.py (the kernels "
    "over fp8 with scales, on a card)",
    remove_when="SGLang's triton backend verifies an fp8 cache as fast as a bfloat16 one.",
    uses=(uses.fp8_cache,),
    unmeasured="26B-A4B's verify and decode steps over fp8_e4m3, stock's beside (tests/gpu/kv_format_stages.py, kv-fp8)",
    hooks=(Hook("sglang.srt.layers.attention.triton_backend.TritonAttnBackend.__init__", "after", read_levels, "e7fa3a24cfc9"),),
)
