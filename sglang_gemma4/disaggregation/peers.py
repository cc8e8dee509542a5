"""Builds the plan's layouts from what SGLang's transfer managers know of both servers; shared by the backends."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sglang_gemma4.disaggregation import plan
from sglang_gemma4.disaggregation.layout import Buffers, Layout, Link, lay_out
from sglang_gemma4.disaggregation.plan import PlanError

logger = logging.getLogger(__name__)

FULL, SLIDING = "full", "sliding"
_HEADS = "heads_of_groups"
_PLANS = "plans_of_peers"


def keep_heads(_result: None, kv_args: Any, token_to_kv_pool: Any, *_args: Any, **_kwargs: Any) -> None:
    """After ``setup_state_kv_args``: keep this rank's numbers of KV heads in full and sliding layers; SGLang keeps only the first.

    Other types of pools are skipped: SGLang handles their transfers.
    """
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MHATokenToKVPoolMXFP8
    from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool

    if not isinstance(token_to_kv_pool, SWAKVPool):
        return
    pools = {FULL: token_to_kv_pool.full_kv_pool, SLIDING: token_to_kv_pool.swa_kv_pool}
    for pool in pools.values():
        # A block-scaled cache has a scale per block of a head; SGLang itself refuses it between unequal sizes. Scales per token and head
        # are ordinary buffers (attention/quantised_pool.py).
        if not isinstance(pool, MHATokenToKVPool) or isinstance(pool, MHATokenToKVPoolMXFP8) or pool.kv_cache_layout != "nhd":
            return
    setattr(kv_args, _HEADS, {name: int(pool.head_num) for name, pool in pools.items()})


def heads(manager: Any) -> Mapping[str, int] | None:
    """KV heads of full and sliding layers as ``keep_heads`` kept them; None if it skipped the pool."""
    found: Mapping[str, int] | None = getattr(manager.kv_args, _HEADS, None)
    return found


def served(manager: Any, decode: int, relayout: bool) -> bool:
    """Whether KV for a decode server of ``decode`` ranks follows the plan: the head counts are kept and our size differs."""
    return heads(manager) is not None and not relayout and int(manager.attn_tp_size) != decode


@dataclass(frozen=True)
class Peer:
    """A decode rank as registered: server size, rank, KV buffers, buffers of each state component (``state_lengths`` may be empty)."""

    decode: int
    rank: int
    kv: Buffers
    state_addresses: Sequence[Sequence[int]]
    state_page_bytes: Sequence[Sequence[int]]
    state_lengths: Sequence[Sequence[int]] = ()


@dataclass(frozen=True)
class Plans:
    """Layouts of both groups for one decode rank; ``component`` is the sliding layers' index among the state components."""

    link: Link
    full: Layout
    sliding: Layout
    component: int

    def say(self) -> None:
        """Log the plan; called at the handshake of each pair of ranks."""
        logger.info("sglang-gemma4: transfer plan, %s: %s; %s", self.link, self.full, self.sliding)


def plans_for(manager: Any, peer: Peer) -> Plans:
    """Lay out both groups for a decode rank.

    Raises:
        PlanError: the two servers do not fit, or use a feature that is not supported with unequal sizes.
    """
    arguments, held = manager.kv_args, heads(manager)
    assert held is not None  # served() has checked this
    _refuse(manager)
    states = [str(getattr(state, "value", state)) for state in arguments.state_types]
    component = states.index("swa")
    if len(peer.state_addresses) <= component or len(peer.state_page_bytes) <= component:
        raise PlanError("the decode server has told of no sliding layers' KV; both servers must serve the same model")
    link = Link(int(manager.attn_tp_size), peer.decode, arguments.engine_rank % manager.attn_tp_size, peer.rank % peer.decode)
    page_size = int(arguments.page_size)
    full = Buffers(arguments.kv_data_ptrs, arguments.kv_item_lens, arguments.kv_data_lens)
    here = Buffers(arguments.state_data_ptrs[component], arguments.state_item_lens[component], arguments.state_data_lens[component])
    lengths = peer.state_lengths[component] if component < len(peer.state_lengths) else ()
    there = Buffers(peer.state_addresses[component], peer.state_page_bytes[component], lengths)
    return Plans(
        link,
        lay_out(FULL, held[FULL], page_size, link, full, peer.kv),
        lay_out(SLIDING, held[SLIDING], page_size, link, here, there),
        component,
    )


def _refuse(manager: Any) -> None:
    """Refuse features that are not supported with unequal tensor-parallel sizes.

    Raises:
        PlanError: one of them is on.
    """
    if manager.pp_size > 1:
        raise PlanError(
            f"--pp-size {manager.pp_size} with different tensor-parallel sizes is not supported; use --pp-size 1 on both servers"
        )
    if manager.attn_cp_size > 1 or manager.dcp_size > 1:
        raise PlanError("context parallelism with different tensor-parallel sizes is not supported; leave it out on both servers")
    if manager.enable_staging:
        raise PlanError(
            "SGLANG_DISAGG_STAGING_BUFFER=1 knows one number of KV heads, Gemma 4 has two; unset it on both servers, or give both "
            "one --tp-size"
        )
    if manager.kv_args.num_draft_entries:
        raise PlanError(
            f"a draft with KV of its own ({manager.kv_args.num_draft_entries} buffers) with different tensor-parallel sizes is not "
            "supported; use Gemma 4's MTP assistant, or give both servers one --tp-size"
        )
    if manager.kv_args.swa_kv_cache_layout != "nhd":
        raise PlanError(f"KV pages of layout {manager.kv_args.swa_kv_cache_layout}; with different tensor-parallel sizes they must be nhd")


def plans_of(manager: Any) -> dict[str, Any]:
    """What a backend keeps for each decode rank, by the rank's agent name or session."""
    kept: dict[str, Any] = vars(manager).setdefault(_PLANS, {})
    return kept


def cut_sliding(states: Sequence[Any], source: Sequence[Any], target: Sequence[Any]) -> list[Any]:
    """Page indices of each state component; the sliding layers' are cut to the newest ones that the decode rank asks for.

    Raises:
        PlanError: the decode rank asks for more pages than there are.
    """
    found = list(source)
    for number, state in enumerate(states):
        if str(getattr(state, "value", state)) == "swa" and number < len(found) and found[number] is not None and number < len(target):
            found[number] = plan.newest(found[number], target[number], "sliding layers")
    return found


def fail_requests(requests: Sequence[Any], reason: str) -> None:
    """Mark waiting requests of a decode server as failed, with a reason that reaches their clients."""
    for request in requests:
        receiver = request.kv_receiver
        if receiver is not None:
            receiver.abort()
            receiver.kv_mgr.record_failure(receiver.bootstrap_room, reason)


def refuse_servers(original: Any, queue: Any, by_address: Mapping[str, Sequence[Any]]) -> tuple[dict[str, Any], list[Any]]:
    """Around ``DecodePreallocQueue._ensure_prefill_info``: a prefill server that does not fit only fails its own requests."""
    ready: dict[str, Any] = {}
    waiting: list[Any] = []
    for address, requests in by_address.items():
        try:
            more, rest = original(queue, {address: requests})
        except (RuntimeError, AssertionError) as error:
            logger.error("sglang-gemma4: prefill server %s refused: %s", address, error)
            fail_requests(requests, f"prefill server {address} refused: {error}")
            continue
        ready |= more
        waiting += rest
    return ready, waiting
