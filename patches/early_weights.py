"""A product's weights are fetched while the kernels before the one before it still run."""

from typing import Any

from sglang_gemma4.patching import Hook, Patch, note


def fetch_early(_result: None, *_args: Any, **_kwargs: Any) -> None:
    """After ``Gemma4TextModel.__init__`` and ``Gemma4AssistantForCausalLM.__init__``."""
    from sglang_gemma4.kernels import dependent_launch

    if not dependent_launch.wanted():  # its patch comes first
        note("early_weights", "no kernel is launched dependently: SGLANG_GEMMA4_DEPENDENT_LAUNCH is off or declined")
    dependent_launch.want_early(True)


PATCH = Patch(
    name="early_weights",
    switch="SGLANG_GEMMA4_EARLY_WEIGHTS",
    why="Between two products lie norms, rotation and attention, which leave the memory idle at batch 1; the next product's programs "
    "come only when the last of them has waited.",
    evidence="runs/2026-11-22-26b-mtp-steps (batch 1: 204 products take 2.2 times what reading their weights does)",
    remove_when="Never by SGLang alone: these are the package's kernels.",
    hooks=(
        Hook("sglang.srt.models.gemma4_causal.Gemma4TextModel.__init__", "after", fetch_early, "b7e9b394300f"),
        Hook("sglang.srt.models.gemma4_mtp.Gemma4AssistantForCausalLM.__init__", "after", fetch_early, "d2752d6ad1a9"),
    ),
)
