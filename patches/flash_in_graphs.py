"""In CUDA graphs of joined forwards FlashAttention-4 computes the prompts' full layers, where it was measured faster."""

from typing import Any

from sglang_gemma4.patching import Hook, Patch, uses


def offer(graphs: Any) -> None:
    """Before ``PrefillCudaGraphRunner.capture``, after which ``prefill_beside`` captures joined forwards."""
    from sglang_gemma4.models.schedule import whole_graphs

    vars(graphs)[whole_graphs.FLASH_OFFERED] = True


PATCH = Patch(
    switch="SGLANG_GEMMA4_FLASH_PREFILL",
    why="Long prompts beside running requests are bound by the full layers' attention, which our kernel computes at about 160 TFLOP/s; "
    "FlashAttention-4 needs nothing of the host but shapes, so a graph can hold it.",
    evidence="H200, 26B-A4B, prompts of 8,000 tokens: a joined forward of 2,048 rows takes 49 to 62 ms, by calculation 10 of them in its "
    "five full layers · kernels/ops/attention/flash_attn/cute/tile_scheduler.py:945 (the grid), :962 (lengths are read on the device), "
    "interface.py:1284 (what is compiled) · tests/engine/test_whole_graphs.py · 80 summaries of 8,000 tokens, with balanced_parts: "
    "3,201 tokens/s for 3,017 without both (runs/2026-11-26-26b-h200-gap)",
    remove_when="our kernel is as fast at 512 dimensions.",
    uses=(uses.joined_steps, uses.triton_prefill, uses.hopper, uses.any_batch),
    hooks=(
        Hook("sglang.srt.model_executor.runner.prefill_cuda_graph_runner.PrefillCudaGraphRunner.capture", "before", offer, "85281b39b2ae"),
    ),
)
