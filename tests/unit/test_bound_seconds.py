"""Which pool holds requests back: the seconds, the sizes that would hold more, and when the log says so."""

import itertools
from collections.abc import Iterator

import pytest

from sglang_gemma4.memory import bound, capacity, model_bytes, swa_sizing
from sglang_gemma4.memory.bound import BOUND, Bound
from sglang_gemma4.patching import switches

BUDGET, LIMIT = int(18.153 * 2**30), 64


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Counters of a process that has just started."""
    monkeypatch.setattr(bound, "_STATE", bound._State())
    kept = dict(vars(BOUND))
    vars(BOUND).update(vars(Bound()))
    yield
    vars(BOUND).update(kept)


def of_26b(length: int | None = None) -> bound.Sized:
    """26B-A4B with MTP and 64 requests on an 80 GB card."""
    need = model_bytes.need("26b-a4b")
    demand = capacity.demand(need, mtp=True)
    stock = swa_sizing.Stock(need.all_full + need.draft_layers * need.full_layer, need.all_sliding)
    what = demand, BUDGET, need.own_full, need.own_sliding, LIMIT, stock
    sizes = swa_sizing.solve(*what, length)
    return bound.Sized(*what, sizes.full, sizes.sliding, length)


class Clock:
    """A server that takes a sample each second."""

    def __init__(self) -> None:
        self.now, self.numbers = 100.0, itertools.count()

    def run(self, seconds: int, waiting: int, running: int, tokens: int, pool: str = "", ends: int = 0) -> list[str]:
        """What the log says while ``running`` requests of ``tokens`` run, of which ``ends`` a second are replaced."""
        said, names = [], [str(next(self.numbers)) for _ in range(running)]
        for _ in range(seconds):
            self.now += 1
            names = names[ends:] + [str(next(self.numbers)) for _ in range(min(ends, running))]
            if pool:
                bound.refused(pool)
            if line := bound.looked(waiting, dict.fromkeys(names, tokens), LIMIT, self.now):
                said.append(line)
        return said


def test_seconds_go_to_what_requests_waited_for() -> None:
    clock = Clock()
    clock.run(1, 0, 10, 500)
    clock.run(10, 5, 10, 500, "sliding")
    clock.run(7, 5, 10, 500, "full")
    clock.run(3, 5, LIMIT, 500)
    clock.run(20, 0, 10, 500)
    clock.run(2, 5, 10, 500)  # for something else
    assert (BOUND.waited, BOUND.by_sliding, BOUND.by_full, BOUND.by_limit) == (22, 10, 7, 3)


def test_an_idle_server_counts_for_no_one() -> None:
    clock = Clock()
    clock.run(1, 0, 1, 10)
    clock.now += 3600
    clock.run(1, 1, 1, 10, "full")
    assert BOUND.by_full == bound.STALE_SECONDS


def test_long_requests_on_pools_for_short_ones() -> None:
    """The log names the length, how many more the pools could hold of it, and the variable; and only once."""
    sized, clock = of_26b(), Clock()
    bound.sized(sized)
    said = clock.run(200, 5, 5, 32_450, "full", ends=1)
    assert len(said) == 1, said
    assert said[0].startswith("the full KV pool holds requests back: in the last 60 s requests waited for the full pool 100% and ")
    now, then = sized.held(33_000), of_26b(33_000).held(33_000)
    assert then >= 2 * now
    assert "they are 32450 tokens long on average" in said[0]
    assert f"the pools hold {now} at once and could hold {then}; {switches.REQUEST_TOKENS}=33000 sizes the pools for them" in said[0]


def test_the_answer_changes_with_the_load() -> None:
    clock = Clock()
    bound.sized(of_26b(32_000))
    short = clock.run(70, 20, 30, 900, "sliding", ends=3)
    assert len(short) == 1
    assert "the sliding KV pool holds requests back" in short[0]
    assert f"{switches.REQUEST_TOKENS}=900" in short[0]
    long = clock.run(130, 20, 30, 40_000, "full", ends=3)
    assert "the full KV pool" in long[0]
    assert not clock.run(200, 0, 30, 40_000), "nothing waits"


def test_no_other_sizes_where_none_would_hold_more() -> None:
    bound.sized(of_26b(2000))
    said = Clock().run(70, 20, 60, 2000, "sliding", ends=3)
    assert len(said) == 1
    assert switches.REQUEST_TOKENS not in said[0]


def test_retractions_are_said_by_pool() -> None:
    clock = Clock()
    clock.run(5, 0, 5, 100)
    bound.retracted("sliding")
    bound.retracted("sliding")
    said = clock.run(60, 0, 5, 100)
    assert "the sliding KV pool" in said[0]
    assert said[0].endswith("were retracted 0 and 2 times; they are 100 tokens long on average")


def test_a_moment_of_waiting_is_not_worth_a_line() -> None:
    clock = Clock()
    clock.run(2, 0, 5, 100)
    clock.run(2, 5, 5, 100, "full")
    assert not clock.run(120, 0, 5, 100)


def test_requests_that_ended_count_with_all_their_tokens() -> None:
    clock = Clock()
    bound.looked(0, {"a": 100, "b": 10}, LIMIT, clock.now)
    bound.looked(0, {"a": 150, "b": 20}, LIMIT, clock.now + 1)
    bound.looked(0, {"b": 30}, LIMIT, clock.now + 2)
    assert (BOUND.finished, BOUND.finished_tokens) == (1, 150)
