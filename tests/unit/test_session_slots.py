"""Which session gives its KV up, and what a slot keeps; turns of real engines are in ``tests/engine/test_session_turns.py``."""

from types import SimpleNamespace
from typing import Any

import pytest

from sglang_gemma4.memory import session_slots


class Kv(SimpleNamespace):
    """A KV record: does it hold a row, and how much of it is written."""

    def __init__(self, holds_kv: bool = False, committed: int = 0) -> None:
        super().__init__(holds_kv=holds_kv, kv_committed_len=committed)


class Slots:
    """SGLang's ``StreamingSession``, as far as it is used."""

    def __init__(self, *names: str) -> None:
        self.slots = {name: SimpleNamespace(kv=Kv(True, 40), lock=f"lock of {name}") for name in names}
        self.released: list[str] = []

    def borrowed_slot(self, req: Any) -> Any:
        slot = self.slots.get(req.session.session_id) if req.session else None
        return slot if slot is not None and slot.kv is req.kv else None

    def release_session(self, name: str) -> None:
        del self.slots[name]
        self.released.append(name)


def turn(slots: Slots, name: str, finished: bool = False) -> Any:
    """A request that runs on its session's slot: 30 tokens of prompt, 10 of answer."""
    session = SimpleNamespace(session_id=name, streaming=True)
    tokens = {"origin_input_ids": [0] * 30, "output_ids": [0] * 10}
    return SimpleNamespace(session=session, kv=slots.slots[name].kv, lock=None, finished=lambda: finished, **tokens)


@pytest.mark.parametrize(("committed", "kept"), [(40, 39), (39, 39), (32, 32)])
def test_a_finished_turn_keeps_all_but_its_last_token(committed: int, kept: int) -> None:
    slots = Slots("one")
    slots.slots["one"].kv.kv_committed_len = committed
    assert session_slots.keep(lambda *_: True, slots, turn(slots, "one", finished=True))
    assert slots.slots["one"].kv.kv_committed_len == kept


def test_a_retracted_turn_keeps_nothing() -> None:
    slots = Slots("one")
    req = turn(slots, "one")
    assert not session_slots.keep(lambda *_: pytest.fail("it is no turn's end"), slots, req)
    assert slots.slots == {}
    assert req.lock == "lock of one"


def test_an_aborted_turn_leaves_its_session() -> None:
    aborted, left = [], SimpleNamespace(streaming=True, abort_req=lambda: aborted.append(1))
    found: tuple[list[Any], float, list[Any]] = ([], 0.5, [SimpleNamespace(session=left), SimpleNamespace(session=None)])
    assert session_slots.leave(found) is found
    assert aborted == [1]


def test_idle_sessions_give_up_first_and_running_ones_never() -> None:
    slots = Slots("running", "waiting", "asked last", "asked first", "head")
    times = {"running": 0.0, "waiting": 1.0, "asked last": 5.0, "asked first": 3.0, "head": 2.0}
    busy = ("running", "waiting", "head")
    sessions = {name: SimpleNamespace(session_id=name, _inflight=name in busy, last_active_time=time) for name, time in times.items()}
    waiting = [turn(slots, "head"), SimpleNamespace(session=None), turn(slots, "waiting")]
    scheduler = SimpleNamespace(
        tree_cache=SimpleNamespace(session=slots), waiting_queue=waiting, session_controller=SimpleNamespace(sessions=sessions)
    )
    while session_slots.give_up(scheduler):
        pass
    assert slots.released == ["asked first", "asked last", "waiting", "head"]
    assert not waiting[0].kv.holds_kv, "what a turn that waits has borrowed is not there any more"


def test_a_cache_without_sessions_has_none_to_give_up() -> None:
    assert not session_slots.give_up(SimpleNamespace(tree_cache=SimpleNamespace(), waiting_queue=[]))
