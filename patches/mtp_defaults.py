"""With a draft path alone: NEXTN, 3 steps, topk 1, 4 draft tokens, unquantised; `auto` finds the -assistant."""

import logging
from typing import Any

from sglang_gemma4.patching import Hook, Patch, uses

FIELDS = (
    *("model_path", "download_dir", "speculative_draft_model_path", "speculative_draft_model_revision", "speculative_algorithm"),
    *("speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens"),
    *("speculative_adaptive", "speculative_adaptive_config", "quantization", "speculative_draft_model_quantization"),
)
logger = logging.getLogger(__name__)


def fill_in(server_args: Any) -> None:
    """Before SGLang resolves its arguments; what the operator typed stays as typed."""
    if getattr(server_args, "_resolution_finished", False):  # in a child process: filled in by its parent
        return
    from sglang.srt.arg_groups.overrides import declare_resolution

    from sglang_gemma4.speculative import mtp_defaults

    found = mtp_defaults.missing({name: getattr(server_args, name, None) for name in FIELDS})
    if found:
        said = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in found.items())
        logger.info("sglang-gemma4: for the MTP assistant: %s", said)
        declare_resolution(server_args, "sglang_gemma4.mtp_defaults", **found)


PATCH = Patch(
    switch="SGLANG_GEMMA4_MTP_DEFAULTS",
    why="Stock needs the algorithm, the steps, the candidates and the draft tokens typed, and fails late where one is missing.",
    evidence="srt/arg_groups/speculative_hook.py:985 (_handle_frozen_kv_mtp fills in none of them)",
    remove_when="SGLang chooses them for FROZEN_KV_MTP as it does for EAGLE.",
    uses=(uses.draft_given,),
    hooks=(Hook("sglang.srt.server_args.ServerArgs.resolve_once", "before", fill_in, "7822e7d5cefd"),),
)
