"""Batch sizes of decode graphs: what padding costs, and the sizes that SGLang's runner captures for a server's arguments on an H200."""

import importlib
import json
import os
import tempfile
from bisect import bisect_left
from collections.abc import Callable
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_gemma4.benchmark.results import load
from sglang_gemma4.models.schedule.graph_sizes import MOST_SIZES, TOLERANCE, Step, sizes
from sglang_gemma4.patches import load as load_patch
from sglang_gemma4.tiny import real_sizes
from tests.harness import applied

PATCH = load_patch("graph_sizes")
VERIFY, PLAIN = Step(128, 8, 4), Step(128, 8, 1)
RUN = Path(__file__).parents[2] / "runs" / "2026-11-23-26b-steps-and-floor"
MTP = {"speculative_algorithm": "NEXTN", "speculative_num_steps": 3, "speculative_num_draft_tokens": 4}
EIGHTY = {"max_running_requests": 80}
STOCK_MTP = [*range(1, 9), *range(10, 33, 2), *range(40, 65, 4), 72, 80]
STOCK_PLAIN = [1, 2, 4, 8, 12, *range(16, 81, 8)]
LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 100}
CONFIGS = {**{name: real_sizes.target(name) for name in real_sizes.SIZES}, "llama": LLAMA}


@pytest.mark.parametrize("step", [VERIFY, PLAIN], ids=["verify", "plain"])
@pytest.mark.parametrize("largest", [1, 5, 16, 33, 48, 80])
def test_padding_costs_no_step_more_than_the_tolerance(step: Step, largest: int) -> None:
    found = sizes(step, largest)
    assert found == sorted(set(found))
    assert (found[0], found[-1]) == (1, largest)
    for batch in range(1, largest + 1):
        assert step.cost(found[bisect_left(found, batch)]) <= step.cost(batch) * (1 + TOLERANCE) + 1e-9
    assert {edge for edge in step.edges() if edge <= largest} <= set(found), "no batch is padded into other kernels"


@pytest.mark.parametrize("step", [VERIFY, PLAIN], ids=["verify", "plain"])
def test_no_size_can_be_left_out(step: Step) -> None:
    found = sizes(step, 80)
    for before, size, after in zip([0, *found], found, found[1:], strict=False):
        needed = size in step.edges() or step.cost(after) > step.cost(before + 1) * (1 + TOLERANCE)
        assert needed, size


@pytest.mark.parametrize("step", [VERIFY, PLAIN], ids=["verify", "plain"])
def test_the_number_of_sizes_is_bounded(step: Step) -> None:
    assert len(sizes(step, 512)) <= MOST_SIZES
    assert len(sizes(step, 80, most=12)) <= 12
    with pytest.raises(ValueError, match="2 sizes up to a batch of 80; give at least"):
        sizes(step, 80, most=2)
    with pytest.raises(ValueError, match="a batch of 1 or more"):
        sizes(step, 0)


@pytest.mark.parametrize(("arm", "step"), [("package", VERIFY), ("plain", PLAIN)])
def test_the_cost_is_that_of_the_run_it_was_fitted_to(arm: str, step: Step) -> None:
    run = load(RUN)
    for batch in (1, 8, 32, 80):
        measured = median(float(record["step_ms"]) for record in run.at(f"batch {batch}", arm))
        assert step.cost(batch) == pytest.approx(measured, rel=0.12)


def resolve(folder: Path, model: str = "26b-a4b", pool: int = 80, **arguments: Any) -> list[int]:
    """The sizes that SGLang's decode runner captures, after SGLang has resolved a server's arguments as for an H200."""
    from sglang.srt.arg_groups import cuda_graph_hook, memory_hook
    from sglang.srt.arg_groups.overrides import resolving_view
    from sglang.srt.arg_groups.resolution_hooks import run_hook
    from sglang.srt.model_executor.runner.base_cuda_graph_runner import get_batch_sizes_to_capture
    from sglang.srt.runtime_context import get_context
    from sglang.srt.server_args import ServerArgs

    changed: Any = memory_hook
    changed.get_device_memory_capacity = lambda _: 141 * 1024
    (folder / model).mkdir(exist_ok=True)
    (folder / model / "config.json").write_text(json.dumps(CONFIGS[model]))
    given = ServerArgs(model_path=str(folder / model), device="cuda", **arguments)
    run_hook(cuda_graph_hook.handle_cuda_graph_config, given)
    run_hook(memory_hook.handle_gpu_memory_settings, given)
    runner: Any = SimpleNamespace(req_to_token_pool=SimpleNamespace(size=pool), server_args=given)
    with get_context().override_server_args(cuda_graph_config=resolving_view(given).cuda_graph_config):
        captured, _ = get_batch_sizes_to_capture(runner, arguments.get("speculative_num_draft_tokens", 1), gathered_buffer_required=False)
    return list(captured)


CASES: dict[str, tuple[dict[str, Any], list[int]]] = {
    "MTP": ({**MTP, **EIGHTY}, sizes(VERIFY, 80)),
    "plain": (EIGHTY, sizes(PLAIN, 80)),
    "MTP without a number of requests": ({**MTP, "pool": 48}, sizes(VERIFY, 48)),
    "plain without a number of requests": ({"pool": 4096}, sizes(PLAIN, 256)),
    "a pool smaller than asked for": ({**EIGHTY, "pool": 21}, [size for size in sizes(PLAIN, 80) if size < 21] + [21]),
    "another draft length": ({**EIGHTY, **MTP, "speculative_num_draft_tokens": 2}, sizes(Step(128, 8, 2), 80)),
    "the operator's sizes": ({**MTP, **EIGHTY, "cuda_graph_bs_decode": [1, 8, 32, 80]}, [1, 8, 32, 80]),
    "the operator's sizes as JSON": ({**EIGHTY, "cuda_graph_config": {"decode": {"bs": [3, 9]}}}, [3, 9]),
    "the operator's largest size": ({**MTP, **EIGHTY, "cuda_graph_max_bs_decode": 24}, sizes(VERIFY, 24)),
    "every size": ({**EIGHTY, "disable_cuda_graph_padding": True}, list(range(1, 81))),
    "a dense model": ({**EIGHTY, "model": "31b"}, STOCK_PLAIN),
    "a dense model with MTP": ({**MTP, **EIGHTY, "model": "e4b"}, STOCK_MTP),
    "another model": ({**EIGHTY, "model": "llama"}, STOCK_PLAIN),
}


def resolve_all() -> dict[str, list[int]]:
    """All cases, in a process that has the patch and was asked for it."""
    os.environ[PATCH.switch] = "1"
    applied.apply([PATCH])
    with tempfile.TemporaryDirectory() as folder:
        return {name: resolve(Path(folder), **given) for name, (given, _) in CASES.items()}


def resolve_unasked(switch: str) -> dict[str, list[int]]:
    """Where the switch is not set, or 0."""
    os.environ.pop(PATCH.switch, None)
    applied.apply([PATCH], switch)
    with tempfile.TemporaryDirectory() as folder:
        return {name: resolve(Path(folder), **CASES[name][0]) for name in ("MTP", "plain")}


_found: dict[str, dict[str, list[int]]] = {}


@pytest.fixture
def found(in_child: Callable[[Callable[[], Any]], Any]) -> dict[str, dict[str, list[int]]]:
    if not _found:
        for name in ("arg_groups.pipeline", "model_executor.runner.base_cuda_graph_runner"):
            importlib.import_module(f"sglang.srt.{name}")
        _found.update(ours=in_child(resolve_all), unasked=in_child(lambda: resolve_unasked("")), off=in_child(lambda: resolve_unasked("0")))
    return _found


@pytest.mark.parametrize("name", CASES)
def test_the_runner_captures(name: str, found: dict[str, dict[str, list[int]]]) -> None:
    assert found["ours"][name] == CASES[name][1]


def test_where_nothing_is_set_it_is_on_without_speculation(found: dict[str, dict[str, list[int]]]) -> None:
    assert found["unasked"] == {"MTP": STOCK_MTP, "plain": sizes(PLAIN, 80)}
    assert found["off"] == {"MTP": STOCK_MTP, "plain": STOCK_PLAIN}


def test_how_much_sglangs_sizes_cost_by_the_model() -> None:
    """31 % and 3 % were measured (``runs/2026-11-27-26b-h200-step-curve-plain`` and ``-step-curve``)."""

    def most(step: Step, captured: list[int]) -> float:
        return max(step.cost(captured[bisect_left(captured, batch)]) / step.cost(batch) for batch in range(1, 81)) - 1

    assert (round(most(PLAIN, STOCK_PLAIN), 2), round(most(VERIFY, STOCK_MTP), 2)) == (0.27, 0.06)
