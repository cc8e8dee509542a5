"""Leave a Gemma 4 assistant to SGLang's EAGLE worker instead of promoting it to FROZEN_KV_MTP."""

from collections.abc import Callable
from typing import Any

from sglang_gemma4.patching import Hook, Patch


def keep_eagle(original: Callable[..., Any], algorithm: str | None, *args: Any, **kwargs: Any) -> Any:
    """Around SGLang's resolution of the algorithm's name."""
    found = original(algorithm, *args, **kwargs)
    return "EAGLE" if found == "FROZEN_KV_MTP" and algorithm in ("NEXTN", "EAGLE") else found


PATCH = Patch(
    name="force_eagle",
    switch="SGLANG_GEMMA4_FORCE_EAGLE",
    why="SGLang promotes NEXTN and EAGLE to FROZEN_KV_MTP for every Gemma 4 assistant; a draft that writes KV of its own needs EAGLE.",
    evidence="srt/arg_groups/speculative_hook.py:108-115",
    remove_when="SGLang has a flag for it.",
    hooks=(Hook("sglang.srt.arg_groups.speculative_hook._resolve_speculative_algorithm_alias", "around", keep_eagle, "32a3d47bbf75"),),
)
