"""Pool sizes by window and running requests: the arithmetic, and a simulated scheduler that must neither hang nor waste a pool."""

import random
from dataclasses import dataclass, replace

import pytest

from sglang_gemma4.memory import swa_sizing
from sglang_gemma4.memory.swa_sizing import RADIX_SHARE, Demand, Sizes

MOE = Demand(
    window=1024, page=1, eviction_interval=128, draft_tokens=4, allocation=8, chunk=8192, chunks_in_flight=2, prompt_window_locked=False
)
FULL, SLIDING = 20_480, 204_800  # bytes per token of 26B-A4B
BUDGET = 70 * 2**30


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
        """The worst case that the formula allows for."""
        lock = min(self.prefilled, demand.window) if demand.prompt_window_locked else 0
        own = min(self.full(), demand.window + demand.eviction_interval + demand.draft_tokens) + demand.allocation
        return min(lock + own, self.full() + demand.allocation) + demand.page


def admission(demand: Demand, tokens: int, new: int) -> int:
    """Sliding tokens that SGLang reserves for a prefill (prefill_budget.py, estimate_swa_kv_tokens)."""
    return max(min(tokens, demand.chunk) - demand.window, 0) + min(tokens + new, demand.window) + demand.page


def simulate(demand: Demand, sizes: Sizes, limit: int, requests: list[Request]) -> dict[str, int]:
    """Prefill in chunks, decode a window at a time, retract what does not fit; counts of what stopped an admission, and of retractions."""
    waiting, running = list(requests), list[Request]()
    stopped = {"full": 0, "sliding": 0, "limit": 0, "retracted": 0, "steps": 0}
    while waiting or running:
        stopped["steps"] += 1
        assert stopped["steps"] < 100_000, "no progress"
        used_full = sum(one.full() + demand.allocation for one in running)
        used_sliding = sum(one.sliding(demand) for one in running)
        admitted = 0
        while waiting:
            one = waiting[0]
            if len(running) >= limit:
                stopped["limit"] += 1
                break
            if used_full + one.prompt + one.output + demand.allocation > sizes.full:
                stopped["full"] += 1
                break
            chunk = min(one.prompt, demand.chunk)
            if used_sliding + admission(demand, one.prompt, one.output) > sizes.sliding or admitted + chunk > demand.chunk:
                stopped["sliding"] += admitted + chunk <= demand.chunk  # a full chunk is the schedule, not the pool
                break
            admitted += chunk
            one.prefilled = one.prompt
            used_full += one.prompt + one.output + demand.allocation
            used_sliding += admission(demand, one.prompt, one.output)
            running.append(waiting.pop(0))
        for one in running:
            one.decoded += min(demand.window // 4, one.output - one.decoded)
        while len(running) > 1 and sum(one.sliding(demand) for one in running) > sizes.sliding:
            back = running.pop()
            back.prefilled = back.decoded = 0
            waiting.insert(0, back)
            stopped["retracted"] += 1
        running = [one for one in running if one.decoded < one.output]
    return stopped


def workload(seed: int, count: int, longest: int) -> list[Request]:
    rng = random.Random(seed)
    return [Request(int(longest ** rng.uniform(0.5, 1.0)), rng.randint(1, 1500)) for _ in range(count)]


@pytest.mark.parametrize("locked", [False, True])
@pytest.mark.parametrize("limit", [8, 48, 80])
@pytest.mark.parametrize("longest", [2_000, 30_000, 200_000])
def test_the_sliding_pool_never_stops_a_request_within_the_limit(limit: int, longest: int, locked: bool) -> None:
    demand = replace(MOE, prompt_window_locked=locked)
    sizes = swa_sizing.solve(demand, BUDGET, FULL, SLIDING, limit)
    assert sizes.running == limit
    for seed in range(3):
        stopped = simulate(demand, sizes, limit, workload(seed, 300, longest))
        assert stopped["sliding"] == stopped["retracted"] == 0, stopped


def test_the_simulation_can_fail() -> None:
    """A ratio that starves the sliding pool stops admissions there while the full pool has room."""
    starved = Sizes(full=3_000_000, sliding=40_000, running=80)
    stopped = simulate(MOE, starved, 80, workload(0, 300, 2000))
    assert stopped["sliding"] > 0
    assert stopped["full"] == 0


@pytest.mark.parametrize("longest", [2_000, 30_000, 60_000])
def test_without_a_limit_nothing_hangs_or_is_retracted(longest: int) -> None:
    sizes = swa_sizing.solve(MOE, BUDGET, FULL, SLIDING, None)
    assert simulate(MOE, sizes, 4096, workload(1, 300, longest))["retracted"] == 0


def test_both_pools_run_out_together_at_the_reference_length() -> None:
    sizes = swa_sizing.solve(MOE, BUDGET, FULL, SLIDING, None)
    by_full = sizes.full / (swa_sizing.REFERENCE_WINDOWS * MOE.window)
    by_sliding = (sizes.sliding - 2 * MOE.chunk) / (MOE.per_request * (1 + RADIX_SHARE))
    assert by_full == pytest.approx(by_sliding, rel=0.03)


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
    with pytest.raises(ValueError, match=r"0\.100 GiB for KV hold 476 tokens .* window of 1024 .* raise --mem-fraction-static"):
        swa_sizing.solve(MOE, 2**30 // 10, FULL, SLIDING, 8)
