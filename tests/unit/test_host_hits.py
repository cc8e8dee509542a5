"""What is locked while a request with a prefix on the host is admitted; whole engines are in ``crash_repro/host_hits.py``."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from sglang.srt.managers.schedule_policy import AddReqResult
from sglang.srt.mem_cache.prefill_budget import SWAPrefillBudget
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

from sglang_gemma4.memory.host_hits import with_its_window_locked

REQUEST = SimpleNamespace(best_match_node="best")


class Adder:
    """What the hook reads of a ``PrefillAdder``, and the node that is locked at present."""

    def __init__(self, running: int = 1, admitted: int = 0) -> None:
        self.tree_cache: Any = UnifiedRadixCache.__new__(UnifiedRadixCache)
        self.tree_cache.buffer_pipeline = self.tree_cache.linker = None
        self.memory_budget: Any = SWAPrefillBudget.__new__(SWAPrefillBudget)
        self.memory_budget.req_ring = False
        self.can_run_list = ["another"] * admitted
        self.running_batch = SimpleNamespace(is_empty=lambda: running == 0)
        self.locked: list[str] = []

    @contextmanager
    def _lock_node(self, node: str, *, lock_host: bool) -> Iterator[None]:
        assert lock_host
        self.locked.append(node)
        yield
        self.locked.remove(node)


def admit(adder: Adder, host: int = 0, window: int = 0, fits_locked: bool = False) -> tuple[Any, list[list[str]]]:
    """What the hook answers of an admission that fits only without the lock, and what was locked each time it was asked for."""
    asked: list[list[str]] = []

    def original(given: Adder, _req: Any, *, host_hit_length: int, swa_host_hit_length: int) -> Any:
        assert (host_hit_length, swa_host_hit_length) == (host, window)
        asked.append(list(given.locked))
        return AddReqResult.NO_TOKEN if given.locked and not fits_locked else "admitted"

    return with_its_window_locked(original, adder, REQUEST, host_hit_length=host, swa_host_hit_length=window), asked


@pytest.mark.parametrize("hits", [{"host": 9}, {"window": 9}])
def test_what_is_read_back_is_locked(hits: dict[str, Any]) -> None:
    assert admit(Adder(), **hits) == (AddReqResult.NO_TOKEN, [["best"]])
    assert admit(Adder(), fits_locked=True, **hits) == ("admitted", [["best"]])


def test_without_hits_on_the_host_nothing_is_locked() -> None:
    assert admit(Adder()) == ("admitted", [[]])


def test_nobody_waits_for_ever() -> None:
    assert admit(Adder(running=0), host=9) == ("admitted", [["best"], []])
    assert admit(Adder(running=0, admitted=1), host=9) == (AddReqResult.NO_TOKEN, [["best"]]), "one before it in this batch will end"


@pytest.mark.parametrize("other", ["buffer_pipeline", "linker"])
def test_other_ways_from_the_host_are_left_to_sglang(other: str) -> None:
    adder = Adder()
    setattr(adder.tree_cache, other, object())
    assert admit(adder, host=9) == ("admitted", [[]])
    adder = Adder()
    adder.memory_budget = object()
    assert admit(adder, host=9) == ("admitted", [[]])
