"""Which draft backends can prepare their metadata inside the draft's CUDA graph.

The draft reads the committed prefix of each request, so its metadata follows from two tensors that the graph's runner keeps at fixed
addresses: the lengths and the request rows. A backend may record the kernels that derive it if those take nothing from the host.
"""

from typing import Any

from sglang_gemma4.patching import switches


def reason_against(backend: Any, topk: int) -> str | None:
    """Why the metadata must be prepared outside the graph, or None.

    Args:
        backend: the draft's attention backend.
        topk: candidates a step; trees expand each request into ``topk`` rows.
    """
    if topk != 1:
        return f"--speculative-eagle-topk {topk}: drafts are trees"
    return reason_against_backend(backend)


def reason_against_metadata(backend: Any) -> str | None:
    """Why the metadata of a target's decode step on this backend cannot be recorded in a graph, or None.

    In a unified pool a draft only reads, through tables at fixed addresses. A target's step also writes, to slots that the host's plan has
    translated.
    """
    if reason := reason_against_backend(backend):
        return reason
    if backend.kv_index_translator.is_translating:
        return "a unified pool translates the slots that a step writes through a table of the host's plan"
    return None


def reason_against_backend(backend: Any) -> str | None:
    """Why none of our graphs may contain this backend's attention, wherever its metadata are prepared; or None."""
    from sglang.srt.layers.attention.triton_backend import TritonAttnBackend

    if type(backend).__name__ != TritonAttnBackend.__name__ or not isinstance(backend, TritonAttnBackend):
        return f"{type(backend).__name__} is not the triton backend"
    if backend.dcp_size > 1:
        return "--dcp-size above 1 cuts lengths on the host"
    if switches.is_on("SGLANG_GEMMA4_DEBUG"):
        return "SGLANG_GEMMA4_DEBUG reads the tables on the host before each replay"
    return None
