"""Random histories of a few running requests over SGLang's own tree and pools, with ``own_window``: after every change each slot of both
pools is free, evictable, locked or a running request's own, and every window has its slots."""

import os
import random
from types import SimpleNamespace
from typing import Any

import pytest
from sglang.srt.managers.schedule_batch import ScheduleBatch
from sglang.srt.mem_cache.base_prefix_cache import EvictParams

from sglang_gemma4 import patching
from sglang_gemma4.memory import own_window, window_pressure
from tests.harness.inputs.radix_world import GEMMA, World
from tests.harness.inputs.window_case import PLAIN

HISTORIES = int(os.environ.get("TEST_EXAMPLES", "6"))
"""Of each kind of tree. What is short, and which request is asked, is drawn, so that what a scheduler rarely does comes often."""
STEPS = 60
SIDE_BY_SIDE = 6


@pytest.fixture(autouse=True)
def settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("get_memory", "get_disagg", "get_serving", "get_parallel", "get_spec"):
        monkeypatch.setattr(f"sglang.srt.runtime_context.{name}", lambda: SimpleNamespace(**PLAIN))
    monkeypatch.setenv("SGLANG_SWA_EVICTION_INTERVAL", "4")
    monkeypatch.setenv("SGLANG_INVARIANT_CHECK", "2")
    monkeypatch.setitem(patching.declare._outcomes, own_window.NAME, patching.Outcome(own_window.NAME, "", "", "active"))
    monkeypatch.setattr(own_window, "COUNTS", own_window.Counts())
    monkeypatch.setattr(window_pressure, "COUNTS", own_window.COUNTS)


class History:
    """Requests whose prompts begin as others did, and what happens to them."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self.world, self.rng = world, rng
        self.known = [[rng.randrange(100, 110) for _ in range(rng.randrange(8, 70))] for _ in range(3)]
        window = own_window.window_of(world.cache, GEMMA)
        assert window is not None
        self.window = window

    def room(self, tokens: int) -> bool:
        """Whether so many tokens and a page can be allocated, after what SGLang evicts for them."""
        allocator, needed = self.world.allocator, tokens + self.world.page
        allocator.evict_to_free_tokens(self.world.cache, needed)
        return bool(min(allocator.full_available_size(), allocator.swa_available_size()) >= needed)

    def prefill(self) -> None:
        rng = self.rng
        stem = rng.choice(self.known)
        prompt = stem[: rng.randrange(len(stem) + 1)] + [rng.randrange(100, 110) for _ in range(rng.randrange(2, 50))]
        if len(self.world.running) == SIDE_BY_SIDE or not self.room(len(prompt)):
            return
        evicting = EvictParams(num_tokens=0, swa_num_tokens=rng.randrange(1, 80))
        # Only what the match does not lock may go between the match and the first slots.
        meanwhile = (lambda: self.world.cache.evict(evicting)) if rng.random() < 0.3 else (lambda: None)
        req = self.world.prefill(prompt, chunk=rng.choice((0, 0, 7, 16, 24)), meanwhile=meanwhile)
        self.known[rng.randrange(len(self.known))] = prompt + list(req.output_ids)

    def decode(self) -> None:
        """A step of all, for which the pool may be made short."""
        world = self.world
        if not world.running:
            return
        leave = world.occupy(self.rng.randrange(2 * world.page * len(world.running))) if self.rng.random() < 0.3 else lambda: None
        batch = world.batch()
        fits = window_pressure.make_decode_fit(ScheduleBatch.check_decode_mem, batch)
        leave()
        while not fits and not self.room(world.page * len(world.running)):
            self.end(publish=self.rng.random() < 0.5)
        for req in world.running:
            world.decode(req, 1, interval=4)
        window_pressure.unlock_after_step(None, batch)

    def end(self, publish: bool = True) -> None:
        if self.world.running:
            req = self.rng.choice(self.world.running)
            self.known[0] = [*req.origin_input_ids, *req.output_ids]
            self.world.end(req, publish)

    def take_back(self) -> None:
        """As ``window_pressure.make_room`` asks requests, from any on."""
        world = self.world
        window_pressure.unlock_passed(world.cache, self.window, world.running)
        for req in self.rng.sample(world.running, len(world.running)):
            if window_pressure._may_take(req) and self.rng.random() < 0.6:
                window_pressure.take_back(world.cache, req)

    def evict(self) -> None:
        self.world.cache.evict(EvictParams(num_tokens=self.rng.choice((0, 0, 20)), swa_num_tokens=self.rng.randrange(100)))


KINDS = [(core, page, bigrams) for core in ("rust", "python") for page in (1, 4) for bigrams in (False, True)]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_histories(kind: tuple[str, int, bool]) -> None:
    taken = unlocked = 0
    for number in range(HISTORIES):
        rng = random.Random(f"{kind} {number}")
        world = World(*kind)
        history = History(world, rng)
        acts: list[Any] = [history.prefill] * 4 + [history.decode] * 8 + [history.end] + [history.take_back] * 3 + [history.evict]
        for step in range(STEPS):
            act = rng.choice(acts)
            try:
                act()
                world.sums()
                assert all(world.reads(req) for req in world.running)
            except Exception as error:
                raise AssertionError(f"history {number}, step {step}: {act.__name__}") from error
        while world.running:
            world.end(world.running[0])
        world.empties()
        taken, unlocked = own_window.COUNTS.taken_back, own_window.COUNTS.unlocked
    assert taken > HISTORIES
    assert unlocked > HISTORIES
