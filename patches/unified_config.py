"""12B checkpoints (Gemma 4 unified) load as transformers 5.19 saves them."""

from typing import Any

from sglang_gemma4.patching import Entry, Patch, uses


def filled() -> Any:
    """In place of SGLang's alias of ``Gemma4Config``."""
    from sglang_gemma4.models.unified_config import UnifiedConfig

    return UnifiedConfig


PATCH = Patch(
    switch="SGLANG_GEMMA4_CONFIGS",
    why="Stock reads a 12B's configuration as a Gemma4Config: as transformers 5.19 saves one, it lacks model_patch_size, and audio and "
    "per-layer embeddings get another model's sizes.",
    evidence="srt/utils/hf_transformers/common.py:270 · srt/models/gemma4_unified.py:73 · crash_repro/unified_config.py",
    remove_when="SGLang reads gemma4_unified by transformers' own class, or fills what its file leaves out.",
    uses=(uses.unified,),
    hooks=(Entry("sglang.srt.utils.hf_transformers.common._CONFIG_REGISTRY", "gemma4_unified", filled, "631b8b8d6ce8"),),
)
