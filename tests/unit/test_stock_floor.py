"""No length of requests fits in smaller numbers than by SGLang's own configurator, whatever budget, model, limit and page."""

import random
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_gemma4.memory import capacity, given, model_bytes, swa_sizing
from sglang_gemma4.memory.swa_sizing import Demand, Stock
from sglang_gemma4.patching import switches

LENGTHS = (1, 64, 500, 1000, 1100, 1165, 1500, 2188, 2500, 4000, 8500, 16_000, 32_500, 131_072)
MODELS = ("e2b", "e4b", "12b", "26b-a4b", "31b")


def sglang_s_sizes(full_cell: float, sliding_cell: float, budget: int, page: int) -> tuple[int, int]:
    """What SGLang's ``HybridSWAPoolConfigurator`` gives, by its own code; its constructor alone needs a model."""
    from sglang.srt.model_executor.pool_configurator import HybridSWAPoolConfigurator

    made: Any = HybridSWAPoolConfigurator.__new__(HybridSWAPoolConfigurator)
    vars(made).update(
        _full_per_token=full_cell,
        _full_layers_num=1,
        _draft_full_layers_num=0,
        _swa_per_token=sliding_cell,
        _swa_layers_num=1,
        _draft_swa_layers_num=0,
        _draft_swa_full_layers_num=0,
        _draft_cell_size=0,
        _fused_full_entry=None,
        _fused_swa_entry=None,
        _swa_full_tokens_ratio=swa_sizing.STOCK_RATIO,
        _sliding_window_size=1,
        _page_size=page,
        _enable_unified_memory=False,
    )
    made._recompute_cell_size()
    config = made.calculate_pool_sizes(budget, page)
    return config.full_max_total_num_tokens, config.swa_max_total_num_tokens


def test_the_ratio_is_sglang_s() -> None:
    from sglang.srt.arg_groups.fields import schedule

    source = schedule.__file__
    with open(source) as file:
        text = file.read()
    found = text[text.index("swa_full_tokens_ratio: A[") :]
    assert f"fallback={swa_sizing.STOCK_RATIO}," in found[: found.index("] = None")]


@pytest.mark.parametrize("page", [1, 16, 64])
@pytest.mark.parametrize("name", MODELS)
def test_stock_is_what_sglang_s_code_computes(name: str, page: int) -> None:
    need = model_bytes.need(name)
    for budget in (2**31, 18 * 2**30 + 12_345, 66 * 2**30):
        priced = Stock(need.all_full + need.draft_layers * need.full_layer, need.all_sliding)
        assert priced.sizes(budget, page) == sglang_s_sizes(priced.full_cell, priced.sliding_cell, budget, page)


def demands(window: int, chance: random.Random) -> Demand:
    """A server of some page, chunk, draft and number of windows."""
    return Demand(
        window=window,
        page=chance.choice((1, 1, 16, 64)),
        eviction_interval=chance.choice((1, 128, 512)),
        draft_tokens=chance.choice((0, 4, 8)),
        allocation=chance.choice((1, 8, 16)),
        chunk=chance.choice((2048, 4096, 8192, 16_384)),
        chunks_in_flight=chance.choice((1, 2)),
        windows=chance.choice((1, 2)),
        radix_cache=chance.random() < 0.8,
    )


@pytest.mark.parametrize("name", MODELS)
def test_every_length_runs_as_many_as_by_sglang_s_ratio(name: str) -> None:
    """Stock's requests hold two windows with the radix cache, as ours do where ``own_window`` is not active."""
    need, chance = model_bytes.need(name), random.Random(name)
    rounded = 2 + need.own_sliding / need.own_full  # pages of full tokens that the memory of one sliding page is worth, and both roundings
    checked = floored = small = 0
    for _ in range(400):
        demand = demands(need.window - 1, chance)
        budget = int(2 ** chance.uniform(1.0, 7.0) * 2**30)
        limit = chance.choice((None, None, 1, 8, 32, 48, 64, 128, 256, 4096))
        draft = need.draft_layers * need.full_layer if demand.draft_tokens else 0
        stock = Stock(need.all_full + draft, need.all_sliding)
        stock_full, stock_sliding = stock.sizes(budget, demand.page)
        if stock_sliding <= demand.window + demand.page:
            continue
        sizes = swa_sizing.solve(demand, budget, need.own_full, need.own_sliding, limit, stock)
        assert sizes.full >= stock_full, (demand, budget, limit, sizes)
        assert sizes.full * need.own_full + sizes.sliding * need.own_sliding <= budget
        two = demand.per_request + (2 - demand.windows) * demand.cached if demand.radix_cache else demand.per_request
        if sizes.full <= swa_sizing.LONG + rounded * demand.page:  # a small pool: see the next test
            small += 1
            continue
        for length in LENGTHS:
            paged = -(-length // demand.page) * demand.page
            ours = min(limit or 10**6, sizes.full // paged, sizes.sliding // demand.held(length))
            theirs = min(limit or 10**6, stock_full // paged, stock_sliding // min(paged, two))
            assert ours >= theirs, (length, demand, budget, limit, sizes, stock_full, stock_sliding)
            checked += 1
        floored += sizes.floored
    assert checked > 2000
    assert small < 200, "the rule holds for most pools"
    if name in ("12b", "26b-a4b", "31b"):
        assert floored > 20, "the rule decided some of them"


def test_short_requests_do_not_crowd_out_a_long_one() -> None:
    """31B on an 80 GB card: by SGLang's ratio no prompt above 12,000 tokens is served."""
    need = model_bytes.need("31b")
    demand, stock = capacity.demand(need, mtp=False), Stock(need.all_full, need.all_sliding)
    for gib in (2.5, 4, 8, 16, 24, 48):
        budget = int(gib * 2**30)
        found = swa_sizing.solve(demand, budget, need.own_full, need.own_sliding, None, stock)
        alone = swa_sizing.solve(demand, budget, need.own_full, need.own_sliding, None)
        stock_full, stock_sliding = stock.sizes(budget, 1)
        assert found.full >= max(stock_full, min(alone.full, swa_sizing.LONG)) - 10
        assert found.sliding >= min(alone.sliding, stock_sliding)
        if stock_full > swa_sizing.LONG:
            assert found.sliding >= stock_sliding


def test_the_sizes_of_an_80_gb_card_s_trial() -> None:
    """26B-A4B with MTP and 18.15 GiB for KV: 64 requests of 1,000 + 500 tokens fit; by windows alone fewer short ones would."""
    budget, need = int(18.153 * 2**30), model_bytes.need("26b-a4b")
    demand = capacity.demand(need, mtp=True)
    stock = Stock(need.all_full + need.draft_layers * need.full_layer, need.all_sliding)
    assert stock.sizes(budget, 1) == (97_116, 77_692)
    sizes = swa_sizing.solve(demand, budget, need.own_full, need.own_sliding, 64, stock)
    assert (sizes.full, sizes.sliding, sizes.floored) == (174_820, 77_692, True)
    assert sizes.sliding // demand.held(1500) >= 64
    before = swa_sizing.solve(demand, budget, need.own_full, need.own_sliding, 64)
    assert before.sliding // 1000 < 64 < 77 == sizes.sliding // 1000, "without the rule short requests run in smaller numbers"


def test_what_the_operator_says_of_his_requests_decides() -> None:
    budget, need = int(18.153 * 2**30), model_bytes.need("26b-a4b")
    stock = Stock(need.all_full, need.all_sliding)
    long = swa_sizing.solve(capacity.demand(need, mtp=True), budget, need.own_full, need.own_sliding, 64, stock, length=32_500)
    assert long.full // 32_500 > 2 * (stock.sizes(budget, 1)[0] // 32_500)
    assert not long.floored


def test_the_length_of_requests_is_read_and_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang_gemma4 import plugin

    name = switches.REQUEST_TOKENS
    assert given.request_tokens({}) is given.request_tokens({name: " "}) is None
    assert given.request_tokens({name: " 3000 "}) == 3000
    for wrong in ("0", "15", "-5", "3.5", "8k", "1048577"):
        with pytest.raises(switches.SwitchError, match=f"{name}={wrong} is not a whole number of tokens from 16 to 1048576.*unset it"):
            given.request_tokens({name: wrong})
    monkeypatch.setenv(name, "many")
    with pytest.raises(SystemExit, match=f"{name}=many is not a whole number of tokens"):
        plugin.register()


def test_the_line_of_the_log() -> None:
    from sglang_gemma4.memory import pool_configurator

    demand = SimpleNamespace(per_request=1165)
    sizes = swa_sizing.Sizes(174_824, 77_692, running=39, floored=True)
    said = pool_configurator.describe(demand, sizes, None)  # type: ignore[arg-type]
    assert said.startswith(
        "pools by window: 174824 full and 77692 sliding tokens, for 39 running requests of up to 1165 sliding tokens each"
    )
    assert f"no fewer short requests than by SGLang's ratio, {switches.REQUEST_TOKENS}" in said
    assert "of 3000 tokens" in pool_configurator.describe(demand, swa_sizing.Sizes(1, 1, 1), 3000)  # type: ignore[arg-type]
