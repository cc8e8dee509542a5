"""NEXTN and EAGLE stay EAGLE where the draft names a Gemma 4 assistant but has KV of its own."""

from collections.abc import Callable
from typing import Any

from sglang_gemma4.patching import Hook, Patch, switches, uses


def keep_eagle(original: Callable[..., Any], algorithm: str | None, draft: str | None = None, *args: Any, **kwargs: Any) -> Any:
    """Around SGLang's resolution of the algorithm's name."""
    found = original(algorithm, draft, *args, **kwargs)
    if found != "FROZEN_KV_MTP" or algorithm not in ("NEXTN", "EAGLE"):
        return found
    from sglang_gemma4.patches.preflight import one_line

    with one_line():
        refuse_frozen(str(draft), *args, **kwargs)
    return "EAGLE"


def refuse_frozen(draft: str, trust_remote_code: bool = False, kwargs: dict[str, Any] | None = None) -> None:
    """Refuse a draft whose class, as SGLang would load it, reads the target's KV only.

    Raises:
        PreflightError: EAGLE's worker would give it a pool of its own, and keys and values from weights that no checkpoint has.
    """
    from sglang.srt.models.registry import ModelRegistry
    from sglang.srt.utils.hf_transformers_utils import get_config

    from sglang_gemma4.models.config_files import PreflightError

    architectures = get_config(draft, trust_remote_code=trust_remote_code, **(kwargs or {})).architectures
    kind, name = ModelRegistry.resolve_model_cls(architectures)
    if hasattr(kind, "bind_frozen_kv_context"):
        raise PreflightError(
            f"{switches.FORCE_EAGLE}=1: {draft} loads as {name}, a frozen assistant: its layers have no keys and values of their own, "
            f"and EAGLE drafts with nothing else; set {switches.FORCE_EAGLE}=0 to draft with it by FROZEN_KV_MTP, or give a draft "
            "trained for EAGLE"
        )


PATCH = Patch(
    switch=switches.FORCE_EAGLE,
    why="SGLang promotes NEXTN and EAGLE to FROZEN_KV_MTP by a name in the draft's config.json; a draft that writes KV needs EAGLE.",
    evidence="srt/arg_groups/speculative_hook.py:97-115 (any of the names) · srt/models/registry.py:83 (the first that is known is loaded)",
    remove_when="SGLang has a flag for it.",
    uses=(uses.draft_given,),
    hooks=(Hook("sglang.srt.arg_groups.speculative_hook._resolve_speculative_algorithm_alias", "around", keep_eagle, "32a3d47bbf75"),),
)
