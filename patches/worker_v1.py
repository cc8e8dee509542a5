"""MTP runs in a synchronous worker (v1): plain and slower, the reference for v2 and the safe mode."""

import logging
from collections.abc import Callable
from typing import Any

from sglang_gemma4.patching import Hook, Patch, decline, resolution_step, uses
from sglang_gemma4.patching.switches import MTP_V2

STEP = "handle_speculative_decoding"
logger = logging.getLogger(__name__)


def switch_overlap_off(server_args: Any, previous: Callable[[Any], None]) -> None:
    """A wrapper of SGLang's resolution step that knows the algorithm at last."""
    from sglang.srt.arg_groups.model_override_base import resolved_view
    from sglang.srt.arg_groups.overrides import declare_resolution

    previous(server_args)
    resolved = resolved_view(server_args)
    if resolved.speculative_algorithm != "FROZEN_KV_MTP" or resolved.disable_overlap_schedule:
        return
    declare_resolution(server_args, "sglang_gemma4.worker_v1", disable_overlap_schedule=True)
    logger.warning("sglang-gemma4: overlap scheduling is off: %s=0 selects the MTP worker v1, which is synchronous", MTP_V2)


def choose_worker(original: Callable[[Any, Any], Any], algorithm: Any, server_args: Any) -> Any:
    """Around ``create_worker``, which returns the worker's class."""
    found = original(algorithm, server_args)
    if not algorithm.is_frozen_kv_mtp():
        return found
    from sglang.srt.speculative.frozen_kv_mtp_worker_v2 import FrozenKVMTPWorkerV2

    if found is not FrozenKVMTPWorkerV2:
        decline("worker_v1", f"the platform has an MTP worker of its own, {found.__name__}")
        return found
    from sglang_gemma4.speculative.worker_v1 import FrozenKVMTPWorkerV1

    return FrozenKVMTPWorkerV1


PATCH = Patch(
    switch=MTP_V2,
    at=False,
    why="SGLang has one MTP worker, made for overlap: nothing plain to check it against, and no other to fall back on.",
    evidence="srt/speculative/spec_info.py:346 · srt/managers/scheduler.py:4829",
    remove_when="Nothing tests MTP against a plain loop, and no operator needs one.",
    uses=(uses.mtp,),
    hooks=(
        Hook("sglang.srt.speculative.spec_info.SpeculativeAlgorithm.create_worker", "around", choose_worker, "4e60c21796d7"),
        resolution_step(STEP, switch_overlap_off),
    ),
)
