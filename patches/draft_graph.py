"""The draft's attention metadata is prepared inside its CUDA graph (topk 1, triton)."""

from collections.abc import Callable
from typing import Any

from sglang_gemma4.patches import frozen_chain
from sglang_gemma4.patching import Hook, Patch, decline, uses

BACKEND = "sglang.srt.layers.attention.base_attn_backend.AttentionBackend"
WORKER = "sglang.srt.speculative.frozen_kv_mtp_worker_v2.FrozenKVMTPDraftWorker"
IN_GRAPH = "_sglang_gemma4_metadata_in_graph"


def choose(backend: Any, worker: Any) -> None:
    """After ``_init_draft_attn_backend``: mark a backend that can prepare its metadata within the graph."""
    from sglang_gemma4.attention import graph_metadata

    reason = graph_metadata.reason_against(backend, worker.topk)
    if reason:
        decline("draft_graph", f"{reason}: the draft's metadata stays outside its graph")
        return
    setattr(backend, IN_GRAPH, True)


def capture_metadata(_result: None, backend: Any, forward_batch: Any) -> None:
    """After ``init_forward_metadata_in_graph``, which is called while a graph is captured, on the tensors it will be replayed with."""
    if getattr(backend, IN_GRAPH, False):
        backend.init_forward_metadata_out_graph(forward_batch)


def replayed_with_graph(original: Callable[..., None], worker: Any, *args: Any, **kwargs: Any) -> None:
    """Around ``_init_frozen_kv_metadata_replay_cuda_graph``: the graph does it."""
    if not getattr(worker.draft_attn_backend, IN_GRAPH, False):
        original(worker, *args, **kwargs)


PATCH = Patch(
    switch="SGLANG_GEMMA4_FROZEN_CHAIN",
    why="Stock launches the draft's metadata kernels one by one before each replay of its graph, which could hold them.",
    evidence="srt/speculative/frozen_kv_mtp_worker_v2.py:353-378 · frozen_kv_mtp_cuda_graph_runner.py:325-335 (triton's hook is empty) "
    "· never timed alone",
    remove_when="SGLang's triton backend prepares decode metadata in init_forward_metadata_in_graph.",
    declines=frozen_chain.not_under_v1,
    uses=(uses.mtp, uses.triton_decode, uses.decode_graphs),
    hooks=(
        Hook(f"{WORKER}._init_draft_attn_backend", "after", choose, "521cbe95ce3b"),
        Hook(f"{WORKER}._init_frozen_kv_metadata_replay_cuda_graph", "around", replayed_with_graph, "a7db27606ada"),
        Hook(f"{BACKEND}.init_forward_metadata_in_graph", "after", capture_metadata, "4c2e618dd4b6"),
    ),
)
