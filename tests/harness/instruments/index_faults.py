"""Break one index of a running engine, to give the traps something to catch. ``TEST_INSTRUMENTS`` in a case's environment names a function.

Everything here runs in the scheduler's process and waits for a decode or verify step of requests that are well under way.
"""

import importlib
from collections.abc import Callable
from typing import Any

STEP = 5
"""Forwards of a kind that pass before one is broken."""
ENTRY = 41
FAR = 1_000_000


def _before(module: str, owner: str, method: str, fault: Callable[..., None]) -> None:
    """Have ``fault`` called with the arguments of every call of a method."""
    where = getattr(importlib.import_module(module), owner)
    original = getattr(where, method)

    def broken(*args: Any, **kwargs: Any) -> Any:
        fault(*args, **kwargs)
        return original(*args, **kwargs)

    setattr(where, method, broken)


def _in_forward(fault: Callable[[Any, Any], None], draft: bool = False) -> None:
    """Call ``fault(runner, batch)`` once, before the STEP-th decode or verify of the target, or draft of the draft."""
    seen = 0

    def count(runner: Any, batch: Any) -> None:
        nonlocal seen
        mode = batch.forward_mode
        if mode.is_target_verify() or mode.is_decode():
            seen += 1
            if seen == STEP:
                fault(runner, batch)

    if draft:
        module = "sglang.srt.speculative.frozen_kv_mtp_worker_v2"
        _before(module, "FrozenKVMTPDraftWorker", "_position_for_batch", lambda worker, batch: count(worker.draft_model_runner, batch))
    else:
        module = "sglang.srt.model_executor.model_runner"
        _before(module, "ModelRunner", "forward", lambda runner, batch, *_, **__: None if runner.is_draft_worker else count(runner, batch))


def _row(runner: Any, batch: Any) -> Any:
    """The second request's row of the request table, as a view."""
    return runner.req_to_token_pool.req_to_token[int(batch.req_pool_indices[1])]


def request_table() -> None:
    """An index far outside the pool in the target's request table."""

    def fault(runner: Any, batch: Any) -> None:
        _row(runner, batch)[ENTRY] = FAR

    _in_forward(fault)


def request_table_of_draft() -> None:
    """The same, seen first by the draft, whose own pool has 64 slots."""

    def fault(runner: Any, batch: Any) -> None:
        _row(runner, batch)[ENTRY] = FAR

    _in_forward(fault, draft=True)


def mapping_cleared() -> None:
    """The newest committed key of a request loses its sliding slot, as if it had been freed too early."""

    def fault(runner: Any, batch: Any) -> None:
        newest = int(_row(runner, batch)[int(batch.seq_lens[1]) - 2])
        runner.token_to_kv_pool.full_to_swa_index_mapping[newest] = 0

    _in_forward(fault)


def mapping_wrong() -> None:
    """The same key's sliding slot lies just past the sliding pool."""

    def fault(runner: Any, batch: Any) -> None:
        newest = int(_row(runner, batch)[int(batch.seq_lens[1]) - 2])
        pool = runner.token_to_kv_pool
        pool.full_to_swa_index_mapping[newest] = pool.swa_kv_pool.size + pool.page_size

    _in_forward(fault)


def triton_window() -> None:
    """Triton's window list gets an index past the sliding pool after it was built; SGLang's own tables stay right."""
    module: Any = importlib.import_module("sglang.srt.layers.attention.triton_backend")
    original, seen = module.update_sliding_window_buffer, 0

    def broken(*args: Any, **kwargs: Any) -> Any:
        nonlocal seen
        result = original(*args, **kwargs)
        seen += 1
        if seen == STEP:
            result[1][int(result[0][1]) + 2] = FAR  # third key of the second request
        return result

    module.update_sliding_window_buffer = broken


def double_allocation() -> None:
    """The sliding sub-allocator gives one slot to two tokens of a prefill."""
    module: Any = importlib.import_module("sglang.srt.mem_cache.allocator.swa")
    original = module.SWATokenToKVPoolAllocator.set_full_to_swa_mapping

    def broken(self: Any, full: Any, sliding: Any) -> None:
        if sliding.numel() > 1:
            sliding = sliding.clone()
            sliding[1] = sliding[0]
        original(self, full, sliding)

    module.SWATokenToKVPoolAllocator.set_full_to_swa_mapping = broken


def decode_slot_unmapped() -> None:
    """The sliding sub-allocator gives padding to the second request of a decode step."""
    module: Any = importlib.import_module("sglang.srt.mem_cache.allocator.paged")
    original, seen = module.PagedTokenToKVPoolAllocator.alloc_decode, 0

    def broken(self: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal seen
        slots = original(self, *args, **kwargs)
        seen += 1
        if seen == 2 * STEP:  # each step asks the full sub-allocator, then the sliding one
            slots[1] = 0
        return slots

    module.PagedTokenToKVPoolAllocator.alloc_decode = broken


def _replay_beside_eager() -> Any:
    """Have our Triton backend prepare each decode a second time, as before the replay of a CUDA graph; its class."""
    backend = importlib.import_module("sglang_gemma4.attention.triton_window").Gemma4TritonAttnBackend
    original = backend.init_forward_metadata

    def both(self: Any, batch: Any) -> None:
        original(self, batch)
        if batch.forward_mode.is_decode():
            if not hasattr(self, "cuda_graph_kv_indices"):
                self.init_cuda_graph_state(8, 8)
            self.init_forward_metadata_out_graph(batch)

    backend.init_forward_metadata = both
    return backend


def triton_replay_sound() -> None:
    """Replay's preparation beside the eager one, nothing broken."""
    _replay_beside_eager()


def triton_replay() -> None:
    """The list of all keys that a graph reads gets an index past the full pool after it was filled."""
    backend = _replay_beside_eager()
    original, seen = backend._apply_cuda_graph_metadata, 0

    def broken(self: Any, *args: Any, **kwargs: Any) -> None:
        nonlocal seen
        original(self, *args, **kwargs)
        seen += 1
        if seen == STEP:
            self.cuda_graph_kv_indices[int(self.kv_indptr[1]) + 3] = FAR

    backend._apply_cuda_graph_metadata = broken


def triton_graph() -> None:
    """The list of all keys that a captured graph reads gets an index past the full pool just before a real replay."""
    backend = importlib.import_module("sglang_gemma4.attention.triton_window").Gemma4TritonAttnBackend
    original, seen = backend.init_forward_metadata_out_graph, 0

    def broken(self: Any, batch: Any, in_capture: bool = False) -> None:
        nonlocal seen
        original(self, batch, in_capture=in_capture)
        seen += not in_capture
        if not in_capture and seen == STEP:
            self.cuda_graph_kv_indices[int(self.kv_indptr[1]) + 3] = FAR

    backend.init_forward_metadata_out_graph = broken
