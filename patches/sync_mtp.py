"""MTP runs with --disable-overlap-schedule; stock crashes at the first batch."""

from sglang_gemma4.patching import Hook, Patch, uses

TAKE = "sglang_gemma4.speculative.synchronous:take_pipeline_argument"
WORKER = "sglang.srt.speculative.frozen_kv_mtp_worker_v2.FrozenKVMTPWorkerV2"

PATCH = Patch(
    switch="SGLANG_GEMMA4_FROZEN_VIEWS",
    why="The synchronous loop passes pp_proxy_tensors, the frozen-KV worker does not take it: TypeError at the first batch.",
    evidence="srt/managers/scheduler.py:4829 · srt/speculative/frozen_kv_mtp_worker_v2.py:762 (EAGLE takes it: eagle_worker_v2.py:1421)",
    remove_when="FrozenKVMTPWorkerV2.forward_batch_generation takes pp_proxy_tensors.",
    uses=(uses.mtp, uses.synchronous),
    hooks=(Hook(f"{WORKER}.forward_batch_generation", "around", TAKE, "4f069803c80c"),),
)
