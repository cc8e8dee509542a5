"""The plan in SGLang's Mooncake manager: contiguous byte ranges, and errors that are reported instead of ending a thread."""

import logging
from collections.abc import Callable
from typing import Any

from sglang_gemma4.disaggregation import peers
from sglang_gemma4.disaggregation.layout import Buffers, Layout
from sglang_gemma4.disaggregation.plan import PlanError

logger = logging.getLogger(__name__)

Send = Callable[..., Any]


def check_peer(original: Send, manager: Any, info: Any) -> tuple[bool, str | None]:
    """Around ``_validate_peer_state_layout``: lay out both groups; a returned reason refuses the decode rank."""
    checked, problem = original(manager, info)
    peers.plans_of(manager).pop(info.mooncake_session_id, None)
    if problem is not None or not peers.served(manager, info.dst_attn_tp_size, info.requires_dcp_relayout):
        return checked, problem
    lengths = info.dst_kv_item_lens or [info.dst_kv_item_len] * len(info.dst_kv_ptrs)
    told = peers.Peer(
        info.dst_attn_tp_size,
        info.dst_tp_rank,
        Buffers(info.dst_kv_ptrs, lengths),
        info.dst_state_data_ptrs,
        info.dst_state_item_lens,
    )
    try:
        found = peers.plans_for(manager, told)
    except PlanError as error:
        return False, str(error)
    found.say()
    peers.plans_of(manager)[info.mooncake_session_id] = found
    return checked, None


def send_full(original: Send, manager: Any, session: str, source_pages: Any, *args: Any, **kwargs: Any) -> int:
    """Around ``send_kvcache_slice``, which SGLang calls by position: send the full layers. Returns 0 or an error status."""
    found = peers.plans_of(manager).get(session)
    if found is None:
        return int(original(manager, session, source_pages, *args, **kwargs))
    target_pages, executor = args[1], args[5]
    if len(source_pages) != len(target_pages):
        logger.error("full layers: %d pages to send, decode session %s asks for %d", len(source_pages), session, len(target_pages))
        return -1
    return _send(manager, session, found.full, source_pages, target_pages, executor)


def send_sliding(original: Send, manager: Any, *args: Any, **kwargs: Any) -> int:
    """Around ``_send_swa_state_slice``, which SGLang calls by keywords: send the sliding layers. Returns 0 or an error status."""
    session = kwargs["req"].mooncake_session_id
    found = peers.plans_of(manager).get(session)
    if found is None:
        return int(original(manager, *args, **kwargs))
    return _send(manager, session, found.sliding, kwargs["prefill_swa_page_indices"], kwargs["dst_swa_page_indices"], kwargs["executor"])


def cut_state(original: Send, manager: Any, request: Any, source: Any, *args: Any, **kwargs: Any) -> int:
    """Around ``maybe_send_extra``: if the decode rank asks for fewer sliding pages, send the newest; stock sends the oldest."""
    try:
        source = peers.cut_sliding(manager.kv_args.state_types, source, request.dst_state_indices)
    except PlanError as error:
        # Only this request is at fault. An exception would end SGLang's transfer thread, and a status refuses the decode rank for good.
        manager.conclude_failure(bootstrap_room=request.room, failure_reason=str(error))
        return 0
    return int(original(manager, request, source, *args, **kwargs))


def _send(manager: Any, session: str, layout: Layout, source_pages: Any, target_pages: Any, executor: Any) -> int:
    futures = [
        executor.submit(manager.engine.batch_transfer_sync, session, here.tolist(), there.tolist(), lengths.tolist())
        for here, there, lengths in layout.blocks(source_pages, target_pages)
    ]
    return int(manager._await_transfer_futures(futures)) if futures else 0
