"""Under expert parallelism each rank of a CPU engine computes its own experts."""

from sglang_gemma4.patching import Hook, Patch

PATCH = Patch(
    switch="SGLANG_GEMMA4_CPU",
    why="SGLang's experts in torch take the -1 of another rank's expert for an index: the first batch ends the server.",
    evidence="srt/layers/moe/fused_moe_native.py:77 · tests/engine/test_parallel_forms.py",
    remove_when="moe_forward_native skips the experts of other ranks.",
    hooks=(
        Hook(
            "sglang.srt.layers.moe.fused_moe_native.moe_forward_native", "around", "sglang_gemma4.cpu.experts:of_this_rank", "53b7e13072db"
        ),
    ),
    cpu_engine=True,
)
