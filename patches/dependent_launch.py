"""On Hopper and later, kernels of a decode step start while the kernel before still ends."""

from typing import Any

from sglang_gemma4.patching import Hook, Patch, decline, uses


def launch_early(_result: None, *_args: Any, **_kwargs: Any) -> None:
    """After ``Gemma4TextModel.__init__`` and ``Gemma4AssistantForCausalLM.__init__``."""
    from sglang_gemma4.kernels import dependent_launch
    from sglang_gemma4.kernels.card import this_device

    problem = dependent_launch.reason_against(this_device())
    if problem is not None:
        decline("dependent_launch", problem)
    dependent_launch.want(problem is None)


PATCH = Patch(
    switch="SGLANG_GEMMA4_DEPENDENT_LAUNCH",
    why="A decode step at batch 1 is some 900 kernels, between which the card drains, launches and fills again.",
    evidence="runs/2026-11-22-26b-kernels-steps (batch 1: no kernel runs in 0.57 of 6.72 ms) · H200, MTP steps against the package "
    "without it: 4.7 % shorter at batch 1, 1.3 % at 8; 0.7 and 0.4 % at 32 and 64, where the ranges of three repetitions overlap, "
    "runs/2026-11-23-26b-later-pieces (few_row_linear in part) · with few_row_linear and kv_write the card idles 2 % of a step at batch "
    "1, 8.5 % without the three, runs/2026-11-22-26b-mtp-steps · large dense products let the next launch begin when they are read, "
    "without which 31B's layers would lose 3 %, runs/2026-11-26-dense-layers",
    remove_when="Never by SGLang alone: these are the package's kernels. SGLang's own experts are launched so already.",
    uses=(uses.hopper,),
    hooks=(
        Hook("sglang.srt.models.gemma4_causal.Gemma4TextModel.__init__", "after", launch_early, "b7e9b394300f"),
        Hook("sglang.srt.models.gemma4_mtp.Gemma4AssistantForCausalLM.__init__", "after", launch_early, "d2752d6ad1a9"),
    ),
)
