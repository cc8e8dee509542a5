"""Traps illegal KV accesses: checks what attention is about to read and write, and ends with a dump if it is illegal.

Each preparation of attention metadata is checked, eager or before the replay of a CUDA graph: SGLang's request table
before it is used, the backend's own tables after they were built. A forward then synchronises with the device several
times per table. Checking takes up to six int64 tensors of [requests, longest request] outside the static memory: 300
MB for 48 requests of 128k tokens.
"""

import logging
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from types import MethodType
from typing import Any

import numpy as np
import torch

import sglang_gemma4
from sglang_gemma4 import patching
from sglang_gemma4.diagnostics import bounds, kv_tables, trap_dump
from sglang_gemma4.diagnostics.bounds import Table, Violation
from sglang_gemma4.diagnostics.kv_tables import Forward, Pools
from sglang_gemma4.patching.supported import installed_sglang

logger = logging.getLogger(__name__)

ARMED = "_sglang_gemma4_trap"

# (names, rows of the request table) of the last forwards: in graph replays and draft steps the batch has no names.
# The tensors are copied to the host only after a violation.
_named: deque[tuple[list[str], torch.Tensor]] = deque(maxlen=64)
_armed: set[str] = set()


class KVBoundsError(RuntimeError):
    """Attention was about to make an illegal KV access, or an allocator returned an illegal slot."""


def arm(backend: Any, patch: str, distance: int | None, draft: bool) -> None:
    """Install the checks around a backend's metadata preparation, or around that of its inner backends. A second call changes nothing.

    Args:
        patch: name of the calling patch, for its notes.
        distance: distance from a query to its oldest key on sliding layers, or None.
        draft: the backend serves a draft, which reads the target's keys and writes none.
    """
    inner = [getattr(backend, name, None) for name in ("prefill_backend", "decode_backend", "primary")]
    inner += [*getattr(backend, "children", ()), *(backend.attn_backend_list or ())]
    inner = [each for each in inner if each is not None]
    for each in inner:
        arm(each, patch, distance, draft)
    names = [kind.__name__ for kind in type(backend).__mro__]
    if inner or hasattr(backend, ARMED):
        return
    if backend.kv_index_translator is not None and backend.kv_index_translator.is_translating:
        patching.takes(patch, f"{names[0]} reads a unified memory pool, whose tables hold other numbers than slots; it is not checked")
        return
    if not any(name in kv_tables.READERS for name in names):
        patching.note(patch, f"tables that {names[0]} builds are not known here; only req_to_token and the sliding mapping are checked")
    if not hasattr(backend, "req_to_token_pool"):
        patching.takes(patch, f"{names[0]} keeps no request table, so nothing of it can be checked")
        return
    _armed.add(patch)
    patching.takes(patch, None)
    trap = Trap(backend, patch, distance, draft)
    setattr(backend, ARMED, trap)
    trap.wrap()
    logger.info("sglang-gemma4: %s of the %s is trapped; every forward waits for the device", names[0], "draft" if draft else "target")


def remember(batch: Any) -> None:
    """Remember the names of a batch's rows in the request table."""
    if batch.rids and batch.req_pool_indices is not None:
        _named.append((list(batch.rids), batch.req_pool_indices))


def _names(rows: list[int]) -> list[str]:
    """The newest name of each row of the request table, or ""."""
    known: dict[int, str] = {}
    for names, requests in _named:
        known |= dict(zip(requests[: len(names)].tolist(), names, strict=False))
    return [known.get(row, "") for row in rows]


class Trap:
    """The checks around one backend."""

    def __init__(self, backend: Any, patch: str, distance: int | None, draft: bool) -> None:
        self.backend, self.patch, self.distance, self.draft = backend, patch, distance, draft

    def wrap(self) -> None:
        """Wrap the backend's methods that prepare metadata."""
        kind, backend = type(self.backend), self.backend
        backend.init_forward_metadata = partial(self.eager, MethodType(kind.init_forward_metadata, backend))
        backend.init_forward_metadata_out_graph = partial(self.replay, MethodType(kind.init_forward_metadata_out_graph, backend))

    def follow(self, backend: Any) -> None:
        """Wrap a copy of the backend too (``attention.second_metadata``); its inherited methods prepare the original."""
        Trap(backend, self.patch, self.distance, self.draft).wrap()

    def eager(self, original: Callable[..., Any], forward_batch: Any) -> Any:
        """Around ``init_forward_metadata``."""
        return self._checked(lambda: original(forward_batch), forward_batch, replay=False)

    def replay(self, original: Callable[..., Any], forward_batch: Any, in_capture: bool = False) -> Any:
        """Around ``init_forward_metadata_out_graph``, which runs before a graph's replay; at capture there is no real batch to check."""
        if in_capture:
            return original(forward_batch, in_capture=True)
        return self._checked(lambda: original(forward_batch), forward_batch, replay=True)

    def _checked(self, original: Callable[[], Any], batch: Any, replay: bool) -> Any:
        if batch.forward_mode.is_idle() or batch.batch_size == 0:
            return original()
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            if replay:  # SGLANG_ENABLE_METADATA_GLUE_GRAPH falls back to eager: inside a graph the checks would not run
                raise RuntimeError("sglang-gemma4's traps check every preparation of attention metadata; it cannot be captured in a graph")
            patching.note(self.patch, f"{type(self.backend).__name__} prepares inside a captured graph, where nothing can be checked")
            return original()
        # Not stored: the frozen-KV draft swaps the target's pool in during a forward.
        pools = Pools.of(self.backend.token_to_kv_pool)
        forward = Forward.of(batch, self.backend, self.distance, self.draft)
        source = kv_tables.source(forward, pools)
        name = f"{type(self.backend).__name__}{' of the draft' if self.draft else ''}"
        stage = f"{'graph replay' if replay else 'eager'} {batch.forward_mode.name.lower()}"

        def require_legal(tables: Sequence[Table], dumped: Sequence[Table]) -> None:
            if violation := bounds.check(tables):
                raise KVBoundsError(_message(violation, dumped, name, stage, pools, forward, getattr(batch, "rids", None)))

        require_legal(source, source)
        result = original()
        if replay and hasattr(self.backend, "init_forward_metadata_in_graph"):
            # trtllm_mha fills its tables inside the graph: fill them here from the same inputs; the graph fills them
            # again.
            self.backend.init_forward_metadata_in_graph(batch)
        built = kv_tables.built(self.backend, forward, pools, replay) or []
        require_legal(built, [*source, *built])
        return result


def _message(
    violation: Violation,
    tables: Sequence[Table],
    backend: str,
    stage: str,
    pools: Pools,
    forward: Forward | None = None,
    names: list[str] | None = None,
    **arrays: torch.Tensor,
) -> str:
    """Write the dump; return the error message, also if the dump cannot be written. ``forward`` is None for an allocation."""
    if forward is not None:
        names = names or _names(forward.requests.tolist())
        arrays |= {"requests": forward.requests, "key_lens": forward.key_lens, "query_lens": forward.query_lens}
    if pools.mapping is not None:
        arrays["mapping"] = pools.mapping
    distance = None if forward is None else forward.distance
    geometry = {name: getattr(pools, name) for name in ("page_size", "full_slots", "sliding_slots")}
    report = {
        "violation": asdict(violation),
        "layers": {"full": pools.full_layers, "sliding": pools.sliding_layers},
        "geometry": {**geometry, "window": None if distance is None else distance + 1},
        "backend": backend,
        "forward": stage,
        "key_lens": [] if forward is None else forward.key_lens.tolist(),
        "request_ids": names or [],
        "when": time.strftime("%Y-%m-%d %H:%M:%S"),
        "process": os.getpid(),
        "package": sglang_gemma4.__version__,
        "sglang": installed_sglang(),
    }
    said = f"sglang-gemma4 trap: {trap_dump.sentence(report)} [{stage} on {backend}]"
    try:
        extents = [bounds.Extent.of(table) for table in tables]
        report["tables"] = [
            {"name": table.name, "group": table.group, "unit": table.unit, **asdict(extent)}
            for table, extent in zip(tables, extents, strict=True)
        ]
        arrays |= {f"table{place}": _values(table, extent) for place, (table, extent) in enumerate(zip(tables, extents, strict=True))}
        path = trap_dump.write(report, {name: np.asarray(array.cpu().numpy()) for name, array in arrays.items()})
    except Exception as error:
        return f"{said}; its dump could not be written: {type(error).__name__}: {error}"
    return f"{said}; `sglang-gemma4 doctor dump {path}` explains it"


def _values(table: Table, extent: bounds.Extent) -> torch.Tensor:
    """The entries of a table that are read; the raw table's first rows if those cannot be determined."""
    try:
        return bounds.live_values(table, extent)[0]
    except (IndexError, ValueError, RuntimeError):
        return table.indices[: len(extent.ends)]


def check_allocation(patch: str, allocator: Any, slots: torch.Tensor | None, stage: str, tail: int | None = None) -> None:
    """Check an allocation of SGLang's sliding-window allocator: its full slots and the sliding slots mapped to them.

    Args:
        patch: the calling patch; nothing is checked unless it armed a backend.
        tail: number of trailing slots that have a sliding slot, or None for all.

    Raises:
        KVBoundsError: a slot is outside its buffer, reserved, without a sliding slot, or allocated twice.
    """
    if slots is None or patch not in _armed:  # None: out of memory, which SGLang reports itself
        return
    page_size, mapping = allocator.page_size, allocator.full_to_swa_index_mapping
    pools = Pools(page_size, allocator.size_full + page_size, allocator.size_swa + page_size, mapping, [], [])
    violation = bounds.check_allocation(slots, "full", page_size, pools.full_slots)
    windowed = slots if tail is None else slots[len(slots) - tail :]
    if violation is None and not allocator.swa_req_ring and len(windowed):  # a ring's slots belong to request rows, not to tokens
        violation = bounds.check_allocation(mapping[windowed.long()], "sliding", page_size, pools.sliding_slots)
    if violation is None:
        return
    raise KVBoundsError(_message(violation, (), type(allocator).__name__, stage, pools, allocated=slots))
