"""--speculative-adaptive works for MTP: the draft length, 0 included, that measures fastest at each batch size."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sglang_gemma4.patching import Hook, Patch, switches, uses

WORKER = "sglang.srt.speculative.frozen_kv_mtp_worker_v2"


def unsupported_reason(original: Callable[[Any], str | None], server_args: Any) -> str | None:
    """Around ``adaptive_unsupported_reason``: for FROZEN_KV_MTP, every reason but its name, and that of the worker v1."""
    from sglang.srt.arg_groups.overrides import resolving_view

    if resolving_view(server_args).speculative_algorithm != "FROZEN_KV_MTP":
        return original(server_args)
    if not switches.is_on(switches.MTP_V2):
        return f"{switches.MTP_V2}=0 selects the MTP worker v1, whose draft length is fixed"
    as_eagle = copy.copy(server_args)
    declared = list(getattr(server_args, "_resolved_overrides", None) or ())
    as_eagle._resolved_overrides = [*declared, ("sglang_gemma4.adaptive_draft", {"speculative_algorithm": "EAGLE"})]
    return original(as_eagle)


def default_config(server_args: Any) -> None:
    """Before ``_init_adaptive_speculative_params``: SGLang's default lengths are those of its own policy."""
    from sglang.srt.arg_groups.overrides import declare_resolution, resolving_view

    from sglang_gemma4 import speculative

    given = resolving_view(server_args)
    if given.speculative_algorithm == "FROZEN_KV_MTP" and given.speculative_adaptive_config is None:
        path = Path(speculative.__file__).parent / "adaptive_draft.json"
        declare_resolution(server_args, "sglang_gemma4.adaptive_draft", speculative_adaptive_config=str(path))


PATCH = Patch(
    switch="SGLANG_GEMMA4_FROZEN_VIEWS",
    why="MTP has one draft length for every batch size, and costs more than plain decoding where batches are large or drafts refused.",
    evidence="srt/speculative/adaptive_spec_params.py:65 · frozen_kv_mtp_worker_v2.py:741 · runs/2026-11-21-26b-stock-steps (batch 64: "
    "0.93x) · H200, every draft refused: 1.5 to 3.7 % slower than the package without a draft at batch 1 to 64, "
    "runs/2026-11-22-26b-adaptive-refused, up to 4.4 % just after a start, runs/2026-11-22-26b-step-switches · drafts accepted: no "
    "slower, runs/2026-11-22-26b-adaptive-accepted",
    remove_when="SGLang's adaptive speculation takes FROZEN_KV_MTP and weighs the cost of a step.",
    uses=(uses.mtp, uses.adaptive),
    hooks=(
        Hook("sglang.srt.speculative.adaptive_spec_params.adaptive_unsupported_reason", "around", unsupported_reason, "2e315677f2a5"),
        Hook("sglang.srt.arg_groups.speculative_hook._init_adaptive_speculative_params", "before", default_config, "71f4c15ae339"),
        Hook(f"{WORKER}.FrozenKVMTPDraftWorker", "replace", "sglang_gemma4.speculative.adaptive:AdaptiveDraftWorker", "cda3a2335b40"),
        Hook(f"{WORKER}.FrozenKVMTPWorkerV2", "replace", "sglang_gemma4.speculative.adaptive:AdaptiveWorker", "3c1bb35d4ea7"),
    ),
)
