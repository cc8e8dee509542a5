"""The MTP draft sees all of the target's KV on every attention backend, or the start is refused."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from sglang_gemma4.patching import Hook, Patch, uses

GRAPHS = "sglang.srt.speculative.frozen_kv_mtp_cuda_graph_runner.FrozenKVMTPCudaGraphRunner"
WORKER = "sglang.srt.speculative.frozen_kv_mtp_worker_v2.FrozenKVMTPDraftWorker"


@contextmanager
def metadata_view(worker: Any, forward_batch: Any) -> Iterator[None]:
    """Replaces ``_frozen_kv_target_view``: metadata for the target's committed prefix, as of a plain decode."""
    spec_info, forward_batch.spec_info = forward_batch.spec_info, None
    try:
        with pool_view(worker, forward_batch):
            yield
    finally:
        forward_batch.spec_info = spec_info


def pool_view(worker: Any, _forward_batch: Any) -> AbstractContextManager[None]:
    """Replaces ``_target_kv_pool_view``: the draft's forward on the target's KV."""
    from sglang_gemma4.speculative import views

    view: AbstractContextManager[None] = views.target_view(worker.draft_attn_backend, _target_pool(worker))
    return view


def _target_pool(worker: Any) -> Any:
    if worker.kv_context is None:
        raise RuntimeError("the MTP draft runs before its model was bound to the target's KV pool; bind_frozen_kv_context comes first")
    return worker.kv_context.target_token_to_kv_pool


def capture_in_view(original: Callable[..., None], runner: Any, worker: Any) -> None:
    """Around ``FrozenKVMTPCudaGraphRunner.__init__``: buffers that a graph binds are allocated for the target's pool, not the draft's."""
    with pool_view(worker, None):
        original(runner, worker)


def refuse_unknown(backend: Any, worker: Any) -> None:
    """After ``_init_draft_attn_backend``: a backend without an adapter ends the start."""
    from sglang_gemma4.speculative import views

    views.swaps(backend, _target_pool(worker))


def share_scales(_result: None, worker: Any) -> None:
    """After ``_bind_kv_context``: a calibrated KV cache is descaled by the scales of the layer that wrote it."""
    from sglang_gemma4.speculative import views

    views.share_all_kv_scales(worker)


PATCH = Patch(
    switch="SGLANG_GEMMA4_FROZEN_VIEWS",
    why="Stock's views swap the pool alone: fa4 then reads wrong pages in sliding layers, a pair of backends still the draft's own pool.",
    evidence="srt/speculative/frozen_kv_mtp_utils.py:51-104 · models/gemma4_mtp.py:140 (no scales) · "
    "layers/attention/flashattention_backend.py:212 · hybrid_attn_backend.py:38",
    remove_when="SGLang's views swap what backends derive from their pool.",
    uses=(uses.mtp,),
    hooks=(
        Hook(f"{WORKER}._frozen_kv_target_view", "replace", metadata_view, "4d7b6002f487"),
        Hook(f"{WORKER}._target_kv_pool_view", "replace", pool_view, "f9634b22a2ca"),
        Hook(f"{WORKER}._bind_kv_context", "after", share_scales, "c5a5a7de99ea"),
        Hook(f"{WORKER}._init_draft_attn_backend", "after", refuse_unknown, "521cbe95ce3b"),
        Hook(f"{GRAPHS}.__init__", "around", capture_in_view, "e3328ffbb683"),
    ),
)
