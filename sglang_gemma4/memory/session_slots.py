"""What a streaming session's slot claims to hold, when the session loses it, and whose turn runs on it.

The last token of a turn has no KV: a step writes the KV of its input, and the bonus token of a verify step is the input
of the next one. SGLang counts that token as cached if the slot has room for it, which under speculation it always has.
It keeps a retracted turn's slot, so that retraction frees no memory, and treats the turn as ended. It keeps an idle
session's KV for ever. A session that is not streaming continues from tokens that a verify step accepted past a stop.
"""

import logging
from collections.abc import Callable
from typing import Any

logger = logging.getLogger(__name__)


def keep(original: Callable[[Any, Any], bool], slots: Any, req: Any) -> bool:
    """Around ``StreamingSession.try_cache_finished_req``: only a finished turn keeps a slot, without its last token.

    A turn that was retracted, or failed in a step, is prefilled again like any other request.
    """
    session, slot = req.session, slots.borrowed_slot(req)
    if slot is not None and not req.finished():
        del slots.slots[session.session_id]
        req.lock, slot.lock = slot.lock, None
        return False
    if not original(slots, req):
        return False
    kv = slots.slots[session.session_id].kv
    kv.kv_committed_len = min(kv.kv_committed_len, len(req.origin_input_ids) + len(req.output_ids) - 1)
    return True


def create(original: Callable[..., Any], session: Any, turn: Any, *args: Any, **kwargs: Any) -> Any:
    """Around ``Session.create_req``: the request of a turn.

    A session that is not streaming would otherwise continue from accepted tokens past a stop. A turn that a streaming
    session refuses is detached from the session, and its media are ignored. Otherwise its end would be taken for the
    end of the running turn.
    """
    for node in session.req_nodes.values():
        if node.req.finished() and node.req.finished_len is not None:
            node.req.output_ids = node.req.output_ids[: node.req.finished_len]
    req = original(session, turn, *args, **kwargs)
    if session.streaming and req.to_finish is not None:
        req.session = turn.mm_inputs = None
    return req


def leave(found: tuple[list[Any], float, list[Any]]) -> tuple[list[Any], float, list[Any]]:
    """Let sessions whose turn was aborted take their next turn. Returns ``found``, what ``retract_decode`` returned."""
    for req in found[2]:
        if req.session is not None and req.session.streaming:
            req.session.abort_req()
    return found


def make_room(scheduler: Any, batch: Any) -> bool:
    """Give sessions up until the next decode step of ``batch`` has memory; returns whether that was needed and worked."""
    if batch.check_decode_mem():
        return False
    while give_up(scheduler):
        if batch.check_decode_mem():
            return True
    return False


def give_up(scheduler: Any) -> bool:
    """Free the KV of one session that no turn runs on; False if there is none.

    The session's next turn is prefilled from the beginning.
    Idle sessions come first, the longest idle before the others. Then come those whose turn waits, the last in the
    queue first.
    """
    slots = getattr(scheduler.tree_cache, "session", None)
    held = {name for name, slot in slots.slots.items() if slot.kv.holds_kv} if slots is not None else set()
    waiting = {req.session.session_id: req for req in scheduler.waiting_queue if req.session is not None and req.session.streaming}
    sessions = [scheduler.session_controller.sessions[name] for name in held]
    idle = sorted((one for one in sessions if not one._inflight), key=lambda one: one.last_active_time)
    order = [one.session_id for one in idle] + [name for name in reversed(waiting) if name in held]
    if not order:
        return False
    logger.warning("sglang-gemma4: session %s gives its KV to others; its next turn is prefilled from the beginning", order[0])
    _drop(slots, order[0], waiting.get(order[0]))
    return True


def _drop(slots: Any, name: str, turn: Any) -> None:
    """Release the slot of session ``name``. ``turn``: its waiting turn, which may hold the slot's KV record."""
    if turn is not None and turn.kv is slots.slots[name].kv:
        turn.kv = type(turn.kv)()
    slots.release_session(name)
