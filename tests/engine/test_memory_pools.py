"""Pools of real engines: their size, what they hold, and the same tokens from them."""

import re
from functools import cache
from typing import Any

import pytest

from sglang_gemma4.models import model_shape
from sglang_gemma4.models.config_files import read_config
from sglang_gemma4.serving.launch import resolve
from tests.harness.engine_fork import EngineFailed, Group, Nursery, Output, without

PROMPTS: list[list[int]] = [[2, 100, 200, 300, 5, 6, 7, 8] * 20, [2, *range(100, 140)]]
MTP: dict[str, Any] = {
    "speculative_algorithm": "NEXTN",
    "speculative_num_steps": 3,
    "speculative_num_draft_tokens": 4,
    "speculative_eagle_topk": 1,
}
# Sized from the machine's free memory, as on a GPU; torch takes zeroed pages from the system only as they are written.
FROM_MEMORY: dict[str, Any] = {"max_total_tokens": None, "mem_fraction_static": 0.2}
STOCK = {"SGLANG_GEMMA4_POOL_SIZES": "0"}
BY_RATIO = without("swa_sizing")


class Pools:
    """Tokens and GiB of an engine's two pools, as its log says, and the answers it gave."""

    def __init__(self, outputs: list[Output]) -> None:
        log = outputs[0].log
        gib, sliding, full = re.findall(r"SWAKVPool mem usage: ([\d.]+) GB, swa size: (\d+), full size: (\d+)", log)[0]
        self.full, self.sliding, self.gib = int(full), int(sliding), float(gib)
        self.log, self.tokens = log, [output.token_ids for output in outputs]


def pools(nursery: Nursery, name: str, *, mtp: bool = False, stock: bool = False, **engine: Any) -> Pools:
    return _pools(nursery, name, mtp, stock, tuple(engine.items()))


@cache
def _pools(nursery: Nursery, name: str, mtp: bool, stock: bool, engine: tuple[tuple[str, Any], ...]) -> Pools:
    model = resolve(name)
    draft = {**MTP, "speculative_draft_model_path": f"{model}-assistant"} if mtp else {}
    group = Group(PROMPTS, {"max_new_tokens": 8})
    env = {**(STOCK if stock else BY_RATIO), "TEST_INSTRUMENTS": "device_memory:steady"}
    return Pools(nursery.run(model, [group], env=env, **{**FROM_MEMORY, **draft, **dict(engine)})[0])


def bytes_per_full_token(name: str, ratio: float) -> float:
    """From the checkpoint's config, independently of SGLang: KV of the layers that own theirs, in float32."""
    config = read_config(resolve(name), "model")
    assert config is not None
    per_token = model_shape.kv_bytes_per_token(config, kv_bytes=4)
    return per_token["full"] + ratio * per_token["sliding"]


@pytest.mark.parametrize("name", ["tiny-e2b", "tiny-26b-a4b"])
def test_buffers_are_those_of_the_layers_that_own_kv(nursery: Nursery, name: str) -> None:
    ours = pools(nursery, name)
    per_token = ours.gib * 2**30 / ours.full
    assert per_token == pytest.approx(bytes_per_full_token(name, ours.sliding / ours.full), rel=0.01)


def test_shared_layers_cost_nothing(nursery: Nursery) -> None:
    ours, stock = pools(nursery, "tiny-e2b"), pools(nursery, "tiny-e2b", stock=True)
    assert ours.full > 1.9 * stock.full, "8 of its 16 layers share KV"
    assert ours.tokens == stock.tokens


@pytest.mark.parametrize("name", ["tiny-e2b", "tiny-31b"])
def test_the_draft_costs_nothing(nursery: Nursery, name: str) -> None:
    plain, drafted = pools(nursery, name), pools(nursery, name, mtp=True)
    assert drafted.gib > 0.9 * plain.gib, "its weights, no more"
    assert drafted.tokens == plain.tokens, "MTP gives the tokens of plain decoding"
    stock = pools(nursery, name, mtp=True, stock=True)
    assert drafted.gib > 1.2 * stock.gib, "stock keeps the draft's share unused"


def test_moe_gets_its_ratio_and_the_operator_keeps_his(nursery: Nursery) -> None:
    ours = pools(nursery, "tiny-26b-a4b")
    assert ours.sliding / ours.full == pytest.approx(0.15, rel=1e-3)
    assert "swa_full_tokens_ratio 0.15 for MoE Gemma 4" in ours.log
    given = pools(nursery, "tiny-26b-a4b", swa_full_tokens_ratio=0.5)
    assert given.sliding / given.full == pytest.approx(0.5, rel=1e-3)
    assert "--swa-full-tokens-ratio 0.5 stands as given" in given.log
    dense = pools(nursery, "tiny-31b")
    assert dense.sliding / dense.full == pytest.approx(0.8, rel=1e-3)
    stock = pools(nursery, "tiny-26b-a4b", stock=True)
    assert stock.sliding / stock.full == pytest.approx(0.8, rel=1e-3)
    assert ours.full > 1.5 * stock.full
    assert ours.tokens == given.tokens == stock.tokens


@pytest.mark.parametrize("name", ["tiny-26b-a4b", "tiny-31b"])
def test_auto_sizing_by_window(nursery: Nursery, name: str) -> None:
    model = resolve(name)
    draft = {**MTP, "speculative_draft_model_path": f"{model}-assistant"}
    engine = {**FROM_MEMORY, **draft, "chunked_prefill_size": 64}
    group = Group(PROMPTS, {"max_new_tokens": 8})
    found = Pools(nursery.run(model, [group], **engine)[0])
    running = int(re.findall(r"for (\d+) running requests", found.log)[-1])
    assert running == 8, "the engine's --max-running-requests"
    assert found.full > pools(nursery, name).full
    assert found.sliding < 0.1 * found.full
    assert found.tokens == pools(nursery, name).tokens
    window = 64 - 1  # SGLang keeps one token less than the config's window
    assert f"of up to {window + 128 + 4 + 8 + 2} sliding tokens each" in found.log, "one window, where own_window is active"
    two = nursery.run(model, [Group(PROMPTS[1:], {"max_new_tokens": 2})], env=without("own_window"), **engine)[0][0].log
    assert f"of up to {2 * window + 128 + 4 + 8 + 2} sliding tokens each" in two


def test_no_fewer_requests_of_any_length_than_with_sglang_s_configurator(nursery: Nursery) -> None:
    """Without a limit on requests, on a model whose every layer has KV, both pools are SGLang's; with one, the full pool gets what that
    many requests cannot hold; and where the operator says how long requests are, what they need."""
    steady = {"TEST_INSTRUMENTS": "device_memory:steady"}
    group = Group(PROMPTS[1:], {"max_new_tokens": 2})

    def sized(env: dict[str, str], **engine: Any) -> Pools:
        return Pools(nursery.run(resolve("tiny-26b-a4b"), [group], env={**steady, **env}, **{**FROM_MEMORY, **engine})[0])

    stock, ours = (sized(env, max_running_requests=None) for env in (STOCK, {}))
    assert ours.sliding == pytest.approx(stock.sliding, rel=0.005)
    assert ours.full == pytest.approx(stock.full, rel=0.005)
    assert "no fewer short requests than by SGLang's ratio" in ours.log
    limited, long = sized({}), sized({"SGLANG_GEMMA4_REQUEST_TOKENS": "4000"}, max_running_requests=None)
    for found in (limited, long):
        assert found.full > 1.5 * stock.full
        assert "no fewer short requests" not in found.log
    assert "idle sessions, of 4000 tokens" in long.log


def test_the_reserve_is_calculated_from_published_arguments(nursery: Nursery) -> None:
    """After the last graphs, where no card is: the arithmetic, with what SGLang resolved for a server with MTP."""
    model = resolve("tiny-26b-a4b")
    draft = {**MTP, "speculative_draft_model_path": f"{model}-assistant"}
    env = {"TEST_INSTRUMENTS": "device_memory:reserve_lines"}
    log = nursery.run(model, [Group(PROMPTS[1:], {"max_new_tokens": 2})], env=env, chunked_prefill_size=64, **draft)[0][0].log
    assert "Steps(chunk=64, rows=32, " in log
    assert "draft=True, images=True" in log
    assert "GiB left unused after graphs" in log


def on_a_full_card(nursery: Nursery, mtp: bool, **settings: Any) -> list[Output]:
    """Two answers of an engine whose weights left 5 of 80 GiB, by default arguments but those of ``settings``."""
    model = resolve("tiny-31b")
    draft = {**MTP, "speculative_draft_model_path": f"{model}-assistant"} if mtp else {}
    env = {"TEST_INSTRUMENTS": "device_memory:nearly_full", **settings.pop("env", {})}
    sized = {"max_total_tokens": None, "mem_fraction_static": None, "chunked_prefill_size": 64, **settings}
    return nursery.run(model, [Group(PROMPTS, {"max_new_tokens": 8})], env=env, **sized, **draft)[0]


@pytest.mark.parametrize("mtp", [False, True])
def test_where_sglang_s_fraction_leaves_no_pool_the_calculated_reserve_is_kept(nursery: Nursery, mtp: bool) -> None:
    """As 31B on 80 GB: stock's start ends, ours answers with the tokens of any pool."""
    with pytest.raises(EngineFailed, match="Loaded weights leave no GPU memory for the KV cache under"):
        on_a_full_card(nursery, mtp, env=STOCK)
    ours = on_a_full_card(nursery, mtp)
    said = (
        r"--mem-fraction-static 0\.9\d+ in place of SGLang's --mem-fraction-static 0\.\d+, which keeps [\d.]+ of 80.0 GiB and leaves no KV "
    )
    assert len(re.findall(said, ours[0].log)) == 1
    assert Pools(ours).gib < 5
    assert [output.token_ids for output in ours] == pools(nursery, "tiny-31b").tokens


def test_a_fraction_of_the_operator_s_stands_on_a_full_card(nursery: Nursery) -> None:
    with pytest.raises(EngineFailed, match=r"leave no GPU memory for the KV cache under --mem-fraction-static=0\.7"):
        on_a_full_card(nursery, False, mem_fraction_static=0.7)
