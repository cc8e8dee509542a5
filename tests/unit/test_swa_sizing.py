"""Pool sizes by window and running requests: the arithmetic, and a simulated scheduler that must neither hang nor waste a pool."""

import random
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest

from sglang_gemma4.memory import swa_admission, swa_sizing
from sglang_gemma4.memory.swa_sizing import Demand, Sizes

ONE = Demand(
    window=1023, page=1, eviction_interval=128, draft_tokens=4, allocation=8, chunk=8192, chunks_in_flight=2, windows=1, radix_cache=True
)
MOE = replace(ONE, windows=2)
FULL, SLIDING = 20_480, 204_800  # bytes per token of 26B-A4B
BUDGET = 70 * 2**30
DENSE = (81_920, 819_200)  # of 31B
STEP = 64  # tokens that a simulated decode step adds


@dataclass
class Request:
    """A request in the simulation: prompt and output tokens, what of it is prefilled and decoded."""

    prompt: int
    output: int
    prefilled: int = 0
    decoded: int = 0

    def full(self) -> int:
        return self.prefilled + self.decoded

    def sliding(self, demand: Demand) -> int:
        """What is held after a step: with two windows the prompt's last one, locked in the tree, and own tokens until they slide out."""
        own = demand.window + demand.eviction_interval + demand.draft_tokens
        if demand.windows == 2:
            return min(self.prefilled, demand.window) + min(self.decoded, own) + demand.allocation + demand.page
        return min(self.full(), own) + demand.allocation + demand.page


def growth(demand: Demand, running: list[Request]) -> int:
    """What ``swa_admission`` keeps for the running requests."""
    most = demand.window + demand.eviction_interval + demand.draft_tokens
    locked = [min(one.prompt, demand.window) if demand.windows == 2 else 0 for one in running]
    held = [one.decoded if demand.windows == 2 else one.full() for one in running]
    return swa_admission.growth(locked, held, [one.output - one.decoded for one in running], most)


def admission(demand: Demand, tokens: int, new: int) -> int:
    """Sliding tokens that SGLang reserves for a prefill (prefill_budget.py, estimate_swa_kv_tokens)."""
    return max(min(tokens, demand.chunk) - demand.window, 0) + min(tokens + new, demand.window) + demand.page


def simulate(demand: Demand, sizes: Sizes, limit: int, requests: list[Request], stock_admission: bool = False) -> dict[str, int]:
    """SGLang's schedule: prefill, in chunks, whatever is admitted; decode only when nothing is; retract what does not fit.

    Counts what stopped an admission while decoding went on, and retractions.
    """
    waiting, running = [replace(one) for one in requests], list[Request]()
    stopped = {"full": 0, "sliding": 0, "limit": 0, "retracted": 0, "steps": 0}
    while waiting or running:
        stopped["steps"] += 1
        assert stopped["steps"] < 200_000, "no progress"
        if waiting and (why := _prefill(demand, sizes, limit, waiting, running, stock_admission)) is None:
            continue
        if waiting:
            stopped[str(why)] += 1
        assert running, "nothing runs and nothing can be admitted"
        for one in running:
            one.decoded += min(STEP, one.output - one.decoded)
        while len(running) > 1 and sum(one.sliding(demand) for one in running) > sizes.sliding:
            back = running.pop()
            back.prefilled = back.decoded = 0
            waiting.insert(0, back)
            stopped["retracted"] += 1
        running[:] = [one for one in running if one.decoded < one.output]
    return stopped


def _prefill(demand: Demand, sizes: Sizes, limit: int, waiting: list[Request], running: list[Request], stock_admission: bool) -> str | None:
    """One prefill batch of up to a chunk of tokens (SWAPrefillBudget.check_prefill); why there is none, or None."""
    chunk, why = demand.chunk, "limit"
    reserved = 0 if stock_admission else growth(demand, running)
    admitted = False
    while waiting and chunk > 0 and len(running) < limit:
        one = waiting[0]
        left = one.prompt - one.prefilled
        if sum(other.prompt + other.output + demand.allocation for other in running) + one.prompt + one.output > sizes.full:
            why = "full"
            break
        held = sum(other.sliding(demand) for other in running) + min(one.prefilled, demand.window) + reserved
        take, needed = min(left, chunk), admission(demand, left, one.output)
        if one.prefilled:  # a prompt under way takes what there is (available_chunk_tokens)
            take = min(take, sizes.sliding - held - demand.page)
            if take <= 0:
                why = "sliding"
                break
        elif needed >= sizes.sliding - held:
            if needed < sizes.sliding:  # only what can never fit is cut
                why = "sliding"
                break
            take = min(take, sizes.sliding - held - admission(demand, 0, one.output))
            if take <= 0:
                why = "sliding"
                break
        admitted, chunk = True, chunk - take
        reserved += needed
        one.prefilled += take
        if one.prefilled < one.prompt:
            break
        running.append(waiting.pop(0))
    return None if admitted else why


def workload(seed: int, count: int, longest: int) -> list[Request]:
    rng = random.Random(seed)
    return [Request(int(longest ** rng.uniform(0.5, 1.0)), rng.randint(1, 1500)) for _ in range(count)]


@pytest.mark.parametrize("windows", [1, 2])
@pytest.mark.parametrize("limit", [8, 48, 80])
@pytest.mark.parametrize("longest", [2_000, 30_000, 200_000])
def test_the_sliding_pool_never_stops_a_request_within_the_limit(limit: int, longest: int, windows: int) -> None:
    demand = replace(MOE, windows=windows)
    sizes = swa_sizing.solve(demand, BUDGET, FULL, SLIDING, limit)
    assert sizes.running == limit
    for seed in range(2):
        stopped = simulate(demand, sizes, limit, workload(seed, 300, longest))
        assert stopped["sliding"] == stopped["retracted"] == 0, stopped


@pytest.mark.parametrize(("prompt", "output"), [(1000, 1000), (8000, 1000), (1000, 4000)])
def test_many_equal_requests_at_once_are_held_back_by_no_sliding_pool(prompt: int, output: int) -> None:
    """The benchmark's shape, and the worst: all of them hold two windows at the same time."""
    sizes = swa_sizing.solve(replace(MOE, radix_cache=False), BUDGET, FULL, SLIDING, 80)  # no share for idle sessions
    stopped = simulate(MOE, sizes, 80, [Request(prompt, output) for _ in range(160)])
    assert stopped["sliding"] == stopped["retracted"] == 0, stopped


def test_a_pool_for_one_window_a_request_retracts() -> None:
    """Why two windows are counted where the prompt's stays in the tree: at the peak both are whole."""
    sizes = swa_sizing.solve(replace(ONE, radix_cache=False), BUDGET, FULL, SLIDING, 80)
    stock = simulate(MOE, sizes, 80, [Request(1000, 1200) for _ in range(160)], stock_admission=True)
    ours = simulate(MOE, sizes, 80, [Request(1000, 1200) for _ in range(160)])
    assert stock["retracted"] > 0
    assert ours["retracted"] <= stock["retracted"] // 5, "those of one prefill batch are not held against each other"
    assert ours["sliding"] > 0


def test_the_simulation_can_fail() -> None:
    """A ratio that starves the sliding pool stops admissions there while the full pool has room."""
    starved = Sizes(full=3_000_000, sliding=40_000, running=80)
    stopped = simulate(MOE, starved, 80, workload(0, 300, 2000))
    assert stopped["sliding"] > 0
    assert stopped["full"] == 0


@pytest.mark.parametrize("cells", [(FULL, SLIDING), DENSE])
@pytest.mark.parametrize("gib", [4, 8.2, 14, 70])
@pytest.mark.parametrize("longest", [2_000, 30_000, 60_000])
def test_without_a_limit_fewer_are_retracted_and_nothing_waits_much_longer(longest: int, gib: float, cells: tuple[int, int]) -> None:
    """Beyond the balance short requests outnumber what the sliding pool was made for; small pools are in it too (``chunks_cut``)."""
    sizes = swa_sizing.solve(MOE, int(gib * 2**30), *cells, None)
    requests = [one for one in workload(1, 200, longest) if one.prompt + one.output + MOE.allocation < sizes.full]
    assert requests
    stock = simulate(MOE, sizes, 4096, requests, stock_admission=True)
    ours = simulate(MOE, sizes, 4096, requests)
    assert ours["retracted"] <= 0.75 * stock["retracted"], (ours, stock, sizes)
    assert ours["steps"] <= 1.05 * stock["steps"], (ours, stock, sizes)


def test_growth_by_hand() -> None:
    """Of two requests the first ends after 5 tokens, when both hold most; the second then has its window full."""
    assert swa_admission.growth([10, 0], [0, 8], [5, 20], most=12) == 5 + 4
    assert swa_admission.growth([10], [0], [50], most=12) == 12
    assert swa_admission.growth([10], [30], [50], most=12) == 0
    assert swa_admission.growth([], [], [], most=12) == 0
    assert swa_admission.growth([100, 0], [0, 0], [0, 8], most=12) == 0, "the first ends before the second grows by as much"


class SWAPrefillBudget:
    """Stands for SGLang's, whose name is asked."""

    req_ring, page_size = False, 1

    def __init__(self, tokens: int, locked: int) -> None:
        self.allocator = SimpleNamespace(size_swa=tokens)
        self.tree_cache = SimpleNamespace(sliding_window_size=1023, swa_protected_size=lambda: locked)


def test_a_new_request_is_charged_what_it_will_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond its window, but never so much that a request that fits the pool alone would wait for ever."""
    monkeypatch.setattr(swa_admission, "_gemma4", lambda: True)
    monkeypatch.setattr(swa_admission, "_most", lambda window, page: window + 140)
    monkeypatch.setattr(swa_admission, "_ahead", lambda: 0)
    monkeypatch.setattr(swa_admission, "_one_window", lambda: True)

    def charged(prompt: int, answer: int, pool: int = 70_000, locked: int = 0) -> int:
        stock = max(prompt - 1023, 0) + min(prompt + answer, 1023) + 1
        return swa_admission.charge_whole(stock, SWAPrefillBudget(pool, locked), prompt, answer)

    assert charged(500, 400) == 901, "all its tokens"
    assert charged(500, 600) == 1101
    assert charged(500, 5000) == 1164
    assert charged(2000, 500) == 977 + 1164
    assert charged(500, 5000, pool=1100) == 1099 < 1100
    assert charged(3, 5000, pool=2100, locked=1023) == 1076 < 2100 - 1023, "an idle server's locked window is that of its own prefix"
    monkeypatch.setattr(swa_admission, "_ahead", lambda: 12)
    assert charged(500, 400) == 913, "with what a speculative step allocates ahead"
    assert charged(500, 5000) == 1164, "of which its largest has some already"
    monkeypatch.setattr(swa_admission, "_ahead", lambda: 0)
    assert charged(2000, 500, pool=1000) == 977 + 1024, "it does not fit, as stock finds"
    monkeypatch.setattr(swa_admission, "_one_window", lambda: False)
    assert charged(500, 600) == 1101, "its prompt's window in the tree, and its own tokens"
    assert charged(2000, 5000) == 977 + 1023 + 1163 + 1
    monkeypatch.setattr(swa_admission, "_gemma4", lambda: False)
    assert charged(500, 5000) == 1024


def test_growth_of_many_requests_is_that_of_a_sample_of_moments() -> None:
    rng = random.Random(0)
    held, left = [rng.randrange(1500) for _ in range(2000)], [rng.randrange(1, 3000) for _ in range(2000)]
    locked = [rng.randrange(1024) for _ in range(2000)]
    exact = max(
        sum(lock + min(own + t, 1156) for lock, own, rest in zip(locked, held, left, strict=True) if rest >= t) for t in sorted(set(left))
    )
    now = sum(lock + min(own, 1156) for lock, own in zip(locked, held, strict=True))
    assert swa_admission.growth(locked, held, left, 1156) == pytest.approx(exact - now, rel=0.05)


def test_chunks_are_cut_only_in_small_pools() -> None:
    assert not swa_sizing.solve(MOE, BUDGET, FULL, SLIDING, 80).chunks_cut
    assert swa_sizing.solve(MOE, int(8.2 * 2**30), *DENSE, None).chunks_cut
    assert not swa_sizing.solve(replace(MOE, chunk=2048), int(8.2 * 2**30), *DENSE, None).chunks_cut


@pytest.mark.parametrize("length", [4000, 8192, 32_000])
@pytest.mark.parametrize("demand", [ONE, MOE])
def test_both_pools_run_out_together_at_the_length_of_requests(demand: Demand, length: int) -> None:
    sizes = swa_sizing.solve(demand, BUDGET, FULL, SLIDING, None, length=length)
    by_full, by_sliding = sizes.full / length, (sizes.sliding - demand.chunks()) / demand.held(length)
    assert by_full == pytest.approx(by_sliding, rel=0.03)
    assert sizes.running == int(by_sliding)


@pytest.mark.parametrize("length", [2000, 8192, 32_000])
@pytest.mark.parametrize("limit", [1, 16, 64])
def test_windows_and_full_tokens_of_idle_sessions_live_equally_long(limit: int, length: int) -> None:
    """Whatever comes and goes: both pools keep as many sessions of that length beside the running requests."""
    sizes = swa_sizing.solve(ONE, BUDGET, FULL, SLIDING, limit, length=length)
    assert sizes.idle > 10
    windows = (sizes.sliding - ONE.chunks() - limit * ONE.held(length)) / min(length, ONE.window)
    sessions = (sizes.full - limit * length) / length
    assert windows == pytest.approx(sizes.idle, abs=1)
    assert sessions == pytest.approx(sizes.idle, rel=0.02, abs=2)
    without = swa_sizing.solve(replace(ONE, radix_cache=False), BUDGET, FULL, SLIDING, limit, length=length)
    assert without.idle == 0
    assert without.sliding == limit * ONE.held(length) + ONE.chunks()


@pytest.mark.parametrize("limit", [None, 1, 48, 4096])
@pytest.mark.parametrize("page", [1, 16, 64])
@pytest.mark.parametrize("gib", [0.6, 2, 7.3, 70])
def test_sizes_fit_the_budget_and_the_page(limit: int | None, page: int, gib: float) -> None:
    sizes = swa_sizing.solve(replace(MOE, page=page), int(gib * 2**30), FULL, SLIDING, limit)
    assert sizes.full * FULL + sizes.sliding * SLIDING <= gib * 2**30
    assert sizes.full * FULL + sizes.sliding * SLIDING > gib * 2**30 - 2 * page * (FULL + SLIDING), "nothing is left over"
    assert sizes.full % page == sizes.sliding % page == 0
    assert MOE.window + page < sizes.sliding <= sizes.full


def test_a_budget_below_one_window_is_refused_with_the_numbers() -> None:
    with pytest.raises(ValueError, match=r"0\.100 GiB for KV hold 476 tokens .* window of 1023 .* raise --mem-fraction-static"):
        swa_sizing.solve(MOE, 2**30 // 10, FULL, SLIDING, 8)
