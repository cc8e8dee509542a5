"""31B starts by default on an 80 GB card: SGLang's own profiling and arguments at the real sizes, without and with the patch."""

import importlib
import json
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_gemma4 import patching
from sglang_gemma4.memory import capacity, model_bytes
from sglang_gemma4.memory.capacity import GIB, Server
from sglang_gemma4.patches import load
from sglang_gemma4.patching import switches
from sglang_gemma4.tiny import real_sizes
from tests.harness import applied

PATCH = load("memory_reserve")
H100, H200 = "80 GB", "141 GB"
MTP = {"speculative_algorithm": "FROZEN_KV_MTP", "max_running_requests": 48}
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "mtp": MTP,
    "text": {"language_model_only": True},
    "141 GB": {"card": H200},
    "141 GB, mtp": {"card": H200, **MTP},
    "typed": {"mem_fraction_static": 0.76},
    "unified": {"enable_unified_memory": True},
    "64 GB": {"card": "64"},
    "48 GB": {"card": "48 GB"},
    "26b": {"name": "26b-a4b", **MTP},
    "26b, long": {"name": "26b-a4b", "context_length": 150_000, **MTP},
    "26b, too long": {"name": "26b-a4b", "context_length": 262_144, **MTP},
    "26b, few": {"name": "26b-a4b", "max_total_tokens": 4000, **MTP},
}
Found = dict[str, dict[str, Any]]
_found: dict[bool, Found] = {}


def start(
    folder: Path, name: str = "31b", card: str = H100, transport: str = "cuda_ipc", late: bool = True, **arguments: Any
) -> dict[str, Any]:
    """What ``_resolve_memory_pool_config`` gives where weights are loaded: tokens and bytes or the error, and the fraction.

    ``late``: the tokenizer's process took its memory after the weights began to load.
    """
    from sglang.srt.arg_groups import cuda_graph_hook, memory_hook
    from sglang.srt.arg_groups.resolution_hooks import run_hook
    from sglang.srt.mem_cache import kv_cache_configurator
    from sglang.srt.model_executor import pool_configurator
    from sglang.srt.runtime_context import get_context, get_schedule
    from sglang.srt.server_args import ServerArgs

    from sglang_gemma4.memory import reserve_fallback

    where, changed = capacity.card(card), SimpleNamespace(memory=memory_hook, kvc=kv_cache_configurator, pools=pool_configurator)
    changed.memory.get_device_memory_capacity = lambda _: where.mib
    (folder / "config.json").write_text(json.dumps(real_sizes.target(name)))
    args = ServerArgs(model_path=str(folder), device="cuda", mm_feature_transport=transport, **arguments)
    run_hook(cuda_graph_hook.handle_cuda_graph_config, args)
    run_hook(memory_hook.handle_gpu_memory_settings, args)
    get_context().set_server_args(args)
    mtp, images = "speculative_algorithm" in arguments, "language_model_only" not in arguments
    server, needed = Server(mtp, arguments.get("max_running_requests"), images=images, on_card=transport != "cpu"), model_bytes.need(name)
    kept = capacity.IMAGE_CACHE + (capacity.FEATURE_POOL if server.on_card else 0) if images else 0
    loaded, given = capacity.budget(needed, where, server, 1.0) + kept, list[int]()
    changed.kvc.get_available_gpu_memory = lambda *_, **__: loaded / GIB
    changed.kvc.get_parallel = lambda: SimpleNamespace(launch_world_size=1, world_group=SimpleNamespace(cpu_group=None))
    changed.pools.create_memory_pool_configurator = lambda _: SimpleNamespace(finalize_with_max_running_requests=lambda config: config)

    class Configurator(kv_cache_configurator.KVCacheConfigurator):  # type: ignore[misc]
        is_draft_worker, is_hybrid_swa, mambaish_config, post_capture_kv_active, device, gpu_id = False, True, None, False, "cuda", 0

        def __init__(self) -> None:
            self.server_args = args
            self.model = type("Gemma4ForConditionalGeneration", (), {})()
            self.model_config = SimpleNamespace(is_multimodal=images, context_len=arguments.get("context_length", 262_144))

        def config_from_budget(self, budget: int) -> Any:
            given.append(budget)
            full = capacity.by_window(needed, budget, server, where).full
            return SimpleNamespace(max_total_num_tokens=min(full, arguments.get("max_total_tokens", full)))

        def resolve_max_num_reqs(self, _: int) -> int:
            return 48

    outcome = patching.declare._outcomes[PATCH.name] = patching.Outcome(PATCH.name, PATCH.switch, PATCH.does, "active")
    stock = get_schedule().mem_fraction_static
    reserve_fallback.in_force = False
    before = where.free if late else capacity.at_first(where, server)
    try:
        tokens, error = Configurator()._resolve_memory_pool_config(before / GIB).max_total_num_tokens, ""
    except ValueError as raised:
        tokens, error = 0, f"{type(raised).__name__}: {raised}"
    in_force = get_schedule().mem_fraction_static
    found = {"tokens": tokens, "bytes": given[-1] if given else 0, "error": error}
    return {**found, "told": list(outcome.facts), "stock": stock, "fraction": in_force}


def start_all(switch: str) -> Found:
    applied.apply([PATCH], switch)
    with tempfile.TemporaryDirectory() as folder:
        return {name: start(Path(folder), **case) for name, case in CASES.items()}


@pytest.fixture
def found(in_child: Callable[[Callable[[], Any]], Any], request: pytest.FixtureRequest) -> tuple[Found, Found]:
    """Of all cases: what stock gives, and the package."""
    if not _found:
        for name in ("arg_groups.pipeline", "managers.scheduler"):
            importlib.import_module(f"sglang.srt.{name}")
        _found.update({switch == "1": in_child(partial(start_all, switch)) for switch in "01"})
    return _found[False], _found[True]


@pytest.mark.parametrize("case", ["plain", "mtp"])
def test_31b_starts_on_80_gb(found: tuple[Found, Found], case: str) -> None:
    stock, ours = found[0][case], found[1][case]
    assert stock["error"].startswith("ValueError: Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static=0.7")
    assert ours["error"] == ""
    assert ours["tokens"] > 25_000
    assert 0.9 < ours["fraction"] < 0.93
    (said,) = ours["told"]
    by_rule = f"SGLang's --mem-fraction-static {ours['stock']:g}, which keeps 18."
    assert said.startswith(f"--mem-fraction-static {ours['fraction']:g} in place of {by_rule}")
    assert "of 78.4 GiB and leaves no KV pool beside the weights: kept beside weights and KV are 6." in said
    assert said.endswith(f"2.0 for safety; the full pool holds {ours['tokens']} tokens")


@pytest.mark.parametrize("case", ["141 GB", "141 GB, mtp", "text", "26b", "26b, few"])
def test_a_start_that_works_stays_as_it_is(found: tuple[Found, Found], case: str) -> None:
    stock, ours = found[0][case], found[1][case]
    assert stock == ours
    assert ours["tokens"] > (8192 if case != "26b, few" else 3999)
    assert ours["fraction"] == ours["stock"]
    assert ours["told"] == []


@pytest.mark.parametrize("case", ["typed", "unified"])
def test_the_operator_s_fraction_stands(found: tuple[Found, Found], case: str) -> None:
    stock, ours = found[0][case], found[1][case]
    assert stock == ours
    assert f"--mem-fraction-static={stock['stock']}" in ours["error"]
    assert "Raise --mem-fraction-static above 0.7" in ours["error"]


def test_what_does_not_fit_says_by_how_much_and_what_to_do(found: tuple[Found, Found]) -> None:
    for case, free in (("64 GB", "62.7"), ("48 GB", "43.7")):
        ours = found[1][case]
        assert ours["error"].startswith("WeightsTooLargeError: SGLang's --mem-fraction-static 0.")
        assert f" of {free} GiB, leaves no KV pool beside the weights, and neither does what is calculated to be needed (" in ours["error"]
        assert "for CUDA graphs" in ours["error"]
        assert "Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static=0.8" in ours["error"]
        assert "Take quantised weights (docs/quantised.md), a larger --tp-size, a smaller --chunked-prefill-size" in ours["error"]
        assert ours["fraction"] == ours["stock"]
        assert ours["told"] == []


def test_a_context_that_the_operator_names_is_a_request_to_hold(found: tuple[Found, Found]) -> None:
    stock, ours = found[0]["26b, long"], found[1]["26b, long"]
    assert stock["tokens"] < 150_000 < ours["tokens"]
    assert f"leaves {stock['tokens']} tokens, fewer than one request's 150000" in ours["told"][0]
    longer = found[1]["26b, too long"]
    assert longer["tokens"] == ours["tokens"], "what fits at most; patch pool_checks refuses it by name"


def test_the_feature_pool_counts_once_then(monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang_gemma4.memory import memory_reserve, reserve_fallback

    monkeypatch.delenv(switches.RESERVE_GIB, raising=False)
    monkeypatch.setattr(reserve_fallback, "in_force", True)
    assert memory_reserve.keep_no_pool_twice(1.5, is_multimodal=True, mm_feature_transport="cuda_ipc") == 0.5
