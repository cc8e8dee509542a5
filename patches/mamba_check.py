"""An MTP step does not derive again from the model's config that it has no recurrent states to commit."""

from collections.abc import Callable
from typing import Any

from sglang_gemma4.models.config_files import named_gemma4
from sglang_gemma4.patching import Hook, Patch, uses

NONE = "_sglang_gemma4_no_recurrent_states"


def commit(original: Callable[..., None], target_worker: Any, *args: Any, **kwargs: Any) -> None:
    """Around ``commit_mamba_states_after_verify``, whose answer for a Gemma 4 is always that there is nothing to do."""
    runner = target_worker.model_runner
    if NONE not in vars(runner):
        setattr(runner, NONE, named_gemma4(runner.model_config.hf_config))
    if not getattr(runner, NONE):
        original(target_worker, *args, **kwargs)


PATCH = Patch(
    switch="SGLANG_GEMMA4_FROZEN_CHAIN",
    why="Each step asks four families of hybrid models whether this is one of theirs, through transformers' slow config attributes.",
    evidence="srt/speculative/spec_utils.py:1025 · srt/configs/hybrid_arch.py:145 · 7.8 % of the host's own work in a step, sampled on a "
    "CPU; 117 µs a call there for less than 1 with the patch, runs/2026-11-27-cpu-host-step",
    remove_when="SGLang keeps mambaish_config with the model runner.",
    uses=(uses.mtp,),
    hooks=(Hook("sglang.srt.speculative.spec_utils.commit_mamba_states_after_verify", "around", commit, "7e91ea9825ac"),),
)
