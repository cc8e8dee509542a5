"""The sliding pool is sized by running requests and window, the full pool gets the rest."""

from collections.abc import Callable
from typing import Any

from sglang_gemma4.patching import Hook, Patch, decline, idle


def size_by_window(original: Callable[[Any], Any], kvc: Any) -> Any:
    """The configurator of a hybrid Gemma 4 target; every other model's is SGLang's."""
    made = original(kvc)
    if kvc.is_draft_worker or type(made).__name__ != "HybridSWAPoolConfigurator" or not type(kvc.model).__name__.startswith("Gemma4"):
        return made
    from sglang_gemma4.memory import pool_configurator

    reason = pool_configurator.reason_against(kvc)
    if reason:
        decline("swa_sizing", reason)
        return made
    idle("swa_ratio", "swa_sizing sizes the pools")
    return pool_configurator.WindowAwarePoolConfigurator(kvc)


PATCH = Patch(
    switch="SGLANG_GEMMA4_POOL_SIZES",
    why="A ratio of the full pool says nothing about what running requests hold of the sliding one, which their number bounds.",
    evidence="srt/model_executor/pool_configurator.py:801, 924 (by requests only without radix cache) · sglang_gemma4/memory/swa_sizing.py",
    remove_when="SWARequestCapPoolConfigurator works with the radix cache and without --max-running-requests.",
    hooks=(Hook("sglang.srt.model_executor.pool_configurator.create_memory_pool_configurator", "around", size_by_window, "a7ec5a62b327"),),
)
