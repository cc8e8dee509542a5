"""Pool sizes by window and running requests: the arithmetic, and a simulated scheduler that must neither hang nor waste a pool."""

import random
from dataclasses import dataclass, replace

import pytest

from sglang_gemma4.memory import swa_sizing
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


def admission(demand: Demand, tokens: int, new: int) -> int:
    """Sliding tokens that SGLang reserves for a prefill (prefill_budget.py, estimate_swa_kv_tokens)."""
    return max(min(tokens, demand.chunk) - demand.window, 0) + min(tokens + new, demand.window) + demand.page


def simulate(demand: Demand, sizes: Sizes, limit: int, requests: list[Request]) -> dict[str, int]:
    """SGLang's schedule: prefill, in chunks, whatever is admitted; decode only when nothing is; retract what does not fit.

    Counts what stopped an admission while decoding went on, and retractions.
    """
    waiting, running = [replace(one) for one in requests], list[Request]()
    stopped = {"full": 0, "sliding": 0, "limit": 0, "retracted": 0, "steps": 0}
    while waiting or running:
        stopped["steps"] += 1
        assert stopped["steps"] < 200_000, "no progress"
        if waiting and (why := _prefill(demand, sizes, limit, waiting, running)) is None:
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


def _prefill(demand: Demand, sizes: Sizes, limit: int, waiting: list[Request], running: list[Request]) -> str | None:
    """One prefill batch of up to a chunk of tokens (SWAPrefillBudget.check_prefill); why there is none, or None."""
    chunk, why = demand.chunk, "limit"
    reserved, admitted = 0, False
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
    assert simulate(MOE, sizes, 80, [Request(1000, 1200) for _ in range(160)])["retracted"] > 0


def test_the_simulation_can_fail() -> None:
    """A ratio that starves the sliding pool stops admissions there while the full pool has room."""
    starved = Sizes(full=3_000_000, sliding=40_000, running=80)
    stopped = simulate(MOE, starved, 80, workload(0, 300, 2000))
    assert stopped["sliding"] > 0
    assert stopped["full"] == 0


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
