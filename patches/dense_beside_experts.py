"""A MoE layer's dense FFN runs beside its router and experts in decode graphs."""

from typing import Any

from sglang_gemma4.patching import Hook, Patch, decline, uses


def fork_layers(_result: None, model: Any, *_args: Any, **_kwargs: Any) -> None:
    """After ``Gemma4TextModel.__init__``."""
    if not getattr(model.config, "enable_moe_block", False):
        return
    from sglang_gemma4.models.schedule.dense_beside_experts import install, problem_here

    problem = problem_here()
    if problem is not None:
        decline("dense_beside_experts", problem)
    else:
        install(model)


PATCH = Patch(
    switch="SGLANG_GEMMA4_DENSE_OVERLAP",
    why="A MoE layer runs its dense FFN, then router and experts, though neither reads the other: 10 µs a layer at batch 1.",
    evidence="srt/models/gemma4_causal.py:744-758 · H200, MTP steps against the package without it: 4.7, 2.1, 1.8 and 1.1 % shorter at "
    "batch 1, 8, 32 and 64, runs/2026-11-22-26b-step-switches; 5.5, 2.3, 1.6 and 0.8 %, runs/2026-11-23-26b-later-pieces (ranges overlap "
    "at 32; kernels of the drafts differed slightly) · three repetitions each, stock not measured",
    remove_when="Gemma4DecoderLayer runs its two branches on two streams.",
    uses=(uses.moe, uses.decode_graphs),
    hooks=(Hook("sglang.srt.models.gemma4_causal.Gemma4TextModel.__init__", "after", fork_layers, "b7e9b394300f"),),
)
