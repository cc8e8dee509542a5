"""The plan in SGLang's NIXL manager: pieces are prepared once for each pair of ranks, and a request only passes their indices."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sglang_gemma4.disaggregation import peers, plan
from sglang_gemma4.disaggregation.layout import Buffers, Layout
from sglang_gemma4.disaggregation.plan import PlanError

logger = logging.getLogger(__name__)

Send = Callable[..., Any]


@dataclass(frozen=True)
class Prepared:
    """NIXL's handles of one group's pieces on both sides (None if this rank sends none), and pages in each side's buffers."""

    layout: Layout
    source: Any
    target: Any
    source_pages: int
    target_pages: int


def prepare_full(original: Send, manager: Any, peer_name: str, info: Any, *args: Any, **kwargs: Any) -> None:
    """Around ``_init_hetero_tp_prep_handle``: prepare the full layers' pieces.

    Stock assumes one number of heads and keeps one source for all decode sizes.
    """
    if not _served(manager, info):
        original(manager, peer_name, info, *args, **kwargs)
        return
    kinds = {"source": kwargs.get("src_mem_kind", "VRAM"), "target": kwargs.get("dst_mem_kind", "VRAM")}
    found = _plans(manager, info)
    found.say()
    layout = found.full
    here = Buffers(manager.kv_args.kv_data_ptrs, manager.kv_args.kv_item_lens, manager.kv_args.kv_data_lens)
    # An older decode server does not send its number of slots; SGLang then uses the prefill server's.
    pages = info.dst_num_slots or here.pages
    peers.plans_of(manager).setdefault(peer_name, {})[peers.FULL] = _prepare(manager, peer_name, info, layout, here.pages, pages, kinds)


def prepare_sliding(_result: None, manager: Any, info: Any) -> None:
    """After ``_prepare_state_xfer``: prepare the sliding layers' pieces, or refuse a decode rank that does not fit."""
    if not _served(manager, info):
        return
    try:
        found = _plans(manager, info)
        states = manager.kv_args
        number = found.component
        here = Buffers(states.state_data_ptrs[number], states.state_item_lens[number], states.state_data_lens[number])
        told = Buffers((), info.dst_state_item_lens[number], info.dst_state_data_lens[number] if info.dst_state_data_lens else ())
        if not told.pages:
            raise PlanError("the decode server does not tell the lengths of its state buffers; run SGLang 0.5.23 on both servers")
        kinds = {"source": "VRAM", "target": "VRAM"}
        prepared = _prepare(manager, info.agent_name, info, found.sliding, here.pages, told.pages, kinds)
    except PlanError as error:
        _refuse(manager, info.agent_name, str(error))
        return
    peers.plans_of(manager).setdefault(info.agent_name, {})[peers.SLIDING] = prepared


def add_peer(original: Send, manager: Any, info: Any) -> None:
    """Around ``_add_remote_peer``: an error fails this decode rank's requests; in stock it ends the bootstrap thread."""
    try:
        original(manager, info)
    except Exception as error:
        logger.exception("sglang-gemma4: decode rank %s of %s refused", info.decode_tp_rank, info.decode_tp_size)
        _refuse(manager, info.agent_name, f"{type(error).__name__}: {error}")


def send_full(original: Send, manager: Any, peer_name: str, source_pages: Any, target_pages: Any) -> Any:
    """Around ``send_kvcache_slice``: post the full layers' pieces; None if this rank sends none of them."""
    _raise_if_refused(manager, peer_name)
    prepared = peers.plans_of(manager).get(peer_name, {}).get(peers.FULL)
    if prepared is None:
        return original(manager, peer_name, source_pages, target_pages)
    if len(source_pages) != len(target_pages):
        raise PlanError(f"full layers: {len(source_pages)} pages to send, the decode server asks for {len(target_pages)}")
    return _post(manager, prepared, source_pages, target_pages)


def send_equal(original: Send, manager: Any, peer_name: str, *args: Any, **kwargs: Any) -> Any:
    """Around ``send_kvcache``: raise the reason if this decode rank was refused."""
    _raise_if_refused(manager, peer_name)
    return original(manager, peer_name, *args, **kwargs)


def send_sliding(original: Send, manager: Any, *args: Any, **kwargs: Any) -> Any:
    """Around ``_send_swa_state_slice``, which SGLang calls by keywords: post the newest pages, as many as the decode rank asks for."""
    prepared = peers.plans_of(manager).get(kwargs["peer_name"], {}).get(peers.SLIDING)
    if prepared is None:
        return original(manager, *args, **kwargs)
    target = kwargs["dst_swa_page_indices"]
    return _post(manager, prepared, plan.newest(kwargs["prefill_swa_page_indices"], target, "sliding layers"), target)


def _served(manager: Any, info: Any) -> bool:
    return peers.served(manager, info.decode_tp_size, info.requires_dcp_relayout)


def _plans(manager: Any, info: Any) -> peers.Plans:
    return peers.plans_for(
        manager,
        peers.Peer(
            info.decode_tp_size,
            info.decode_tp_rank,
            Buffers(info.dst_kv_ptrs, info.dst_kv_item_lens),
            info.dst_state_data_ptrs,
            info.dst_state_item_lens,
            info.dst_state_data_lens,
        ),
    )


def _prepare(manager: Any, name: str, info: Any, layout: Layout, here: int, there: int, kinds: dict[str, str]) -> Prepared:
    if not layout.pieces:  # other ranks with the same heads send all buffers; NIXL accepts no empty list
        return Prepared(layout, None, None, here, there)
    device = manager.kv_args.gpu_id if kinds["source"] == "VRAM" else 0
    source = manager._prep_xfer_dlist("", manager._pack_stride_descs(layout.runs(here, device, target=False)), kinds["source"])
    device = info.gpu_id if kinds["target"] == "VRAM" else 0
    target = manager._prep_xfer_dlist(name, manager._pack_stride_descs(layout.runs(there, device, target=True)), kinds["target"])
    return Prepared(layout, source, target, here, there)


def _post(manager: Any, prepared: Prepared, source_pages: Any, target_pages: Any) -> Any:
    layout = prepared.layout
    if not layout.pieces or not len(target_pages):
        return None
    for pages, most, side in ((source_pages, prepared.source_pages, "prefill"), (target_pages, prepared.target_pages, "decode")):
        if not 0 <= min(pages) <= max(pages) < most:
            raise PlanError(f"{layout.name} layers: a page of {min(pages)} to {max(pages)} on the {side} server, which has {most}")
    handle = manager.agent.make_prepped_xfer(
        "WRITE",
        prepared.source,
        layout.select(source_pages, prepared.source_pages),
        prepared.target,
        layout.select(target_pages, prepared.target_pages),
    )
    if not handle:
        raise RuntimeError(f"NIXL made no transfer of {len(target_pages)} pages of {layout.name} layers")
    manager._post_xfer(handle, f"NIXL did not take a transfer of {layout.name} layers")
    return handle


def _refuse(manager: Any, name: str, reason: str) -> None:
    logger.error("sglang-gemma4: decode rank %s refused: %s", name, reason)
    manager._state_layout_rejections[name] = reason


def _raise_if_refused(manager: Any, name: str) -> None:
    reason = manager._state_layout_rejections.get(name)
    if reason is not None:
        raise RuntimeError(f"NIXL state layout rejected for {name}: {reason}")
