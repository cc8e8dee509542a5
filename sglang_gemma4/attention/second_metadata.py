"""A second set of attention metadata in one forward, for layers that see other rows of the batch than the layers before them.

A backend keeps the metadata of the current forward in its attributes and, on triton, in index buffers that each preparation overwrites. So
the second set is prepared in a shallow copy of the backend, which shares pools, tables and kernels and has its own copy of what is
overwritten. The original is not touched, and both sets can be in use at once.
"""

import copy
from collections.abc import Callable
from typing import Any

import torch

_TRITON_BUFFERS = ("kv_indptr", "window_kv_indptr", "qo_indptr")
"""Buffers that ``TritonAttnBackend.init_forward_metadata`` overwrites in prefill and decode."""


def reason_against(backend: Any) -> str | None:
    """Why this backend cannot hold a second set, or None; the reason names its class."""
    name, kind = _kind(backend)
    if kind is None:
        return f"{name} is not one of {', '.join(_COPIES)}"
    if kind == "HybridAttnBackend":
        return reason_against(backend.prefill_backend) or reason_against(backend.decode_backend)
    if getattr(backend, "dcp_size", 1) > 1:
        return f"{name} splits the keys of a request over ranks"
    return None


def prepare(backend: Any, forward_batch: Any) -> Any:
    """A copy of ``backend`` whose metadata is that of ``forward_batch``; the original and its metadata stay as they are.

    Raises:
        TypeError: a backend that :func:`reason_against` names.
    """
    problem = reason_against(backend)
    if problem is not None:
        raise TypeError(f"no second attention metadata: {problem}")
    second = _copied(backend)
    second.init_forward_metadata(forward_batch)
    return second


def for_graphs(backend: Any, most: int) -> Any:
    """A copy of a triton ``backend`` with buffers of its own for decode steps of up to ``most`` requests inside CUDA graphs."""
    second = _copied(backend)
    second.init_cuda_graph_state(most, most)
    return second


def _kind(backend: Any) -> tuple[str, str | None]:
    """The name of a backend's class, and the first class of its bases that :data:`_COPIES` has, or None."""
    names = [kind.__name__ for kind in type(backend).__mro__]
    return names[0], next((name for name in names if name in _COPIES), None)


def _copied(backend: Any) -> Any:
    _, kind = _kind(backend)
    second = copy.copy(backend)
    # SGLANG_GEMMA4_DEBUG wraps a backend's preparation in an attribute of the object, which a copy must not inherit.
    trap = vars(second).get("_sglang_gemma4_trap")
    if trap is not None:
        trap.follow(second)
    _COPIES[str(kind)](second)
    return second


def _own_index_buffers(backend: Any) -> None:
    for name in _TRITON_BUFFERS:
        buffer = getattr(backend, name, None)
        if buffer is not None:
            setattr(backend, name, torch.zeros_like(buffer))


def _own_children(backend: Any) -> None:
    backend.prefill_backend, backend.decode_backend = _copied(backend.prefill_backend), _copied(backend.decode_backend)


def _nothing_in_place(backend: Any) -> None:
    """For backends that allocate every tensor of their metadata for each forward."""


_COPIES: dict[str, Callable[[Any], None]] = {
    "TritonAttnBackend": _own_index_buffers,
    "FlashAttentionBackend": _nothing_in_place,
    "Gemma4CpuAttention": _nothing_in_place,
    "HybridAttnBackend": _own_children,
}
