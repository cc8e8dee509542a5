"""MTP runs with --disable-overlap-schedule; stock crashes at the first batch."""

from collections.abc import Callable
from typing import Any

from sglang_gemma4 import uses
from sglang_gemma4.patching import Hook, Patch

WORKER = "sglang.srt.speculative.frozen_kv_mtp_worker_v2.FrozenKVMTPWorkerV2"


def take_pipeline_argument(
    original: Callable[..., Any], worker: Any, batch: Any, *args: Any, pp_proxy_tensors: Any = None, **kwargs: Any
) -> Any:
    """Accept the argument the synchronous loop always passes."""
    from sglang_gemma4.speculative.synchronous import refuse_pipeline_inputs

    refuse_pipeline_inputs(pp_proxy_tensors)
    return original(worker, batch, *args, **kwargs)


PATCH = Patch(
    switch="SGLANG_GEMMA4_FROZEN_VIEWS",
    why="The synchronous loop passes pp_proxy_tensors, the frozen-KV worker does not take it: TypeError at the first batch.",
    evidence="srt/managers/scheduler.py:4829 · srt/speculative/frozen_kv_mtp_worker_v2.py:762 (EAGLE takes it: eagle_worker_v2.py:1421)",
    remove_when="FrozenKVMTPWorkerV2.forward_batch_generation takes pp_proxy_tensors.",
    uses=(uses.mtp, uses.synchronous),
    hooks=(Hook(f"{WORKER}.forward_batch_generation", "around", take_pipeline_argument, "4f069803c80c"),),
)
