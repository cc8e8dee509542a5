"""Prefill graphs in SGLang's own resolution of a server's arguments, for an H200 where nothing else is said: sizes and reasons against."""

import importlib
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sglang_gemma4 import patching
from sglang_gemma4.patches import load
from sglang_gemma4.tiny import checkpoints, real_sizes
from tests.harness import applied

PATCH = load("prefill_graph")
LADDER = [8, 16, 32, 64, 128, 256, 512, 768, 1024, 1536, 2048, 3072, 4096]
TINY = "tiny-26b-a4b"
T4 = 15 * 1024
"""MiB. SGLang's chunks are 2,048 tokens there."""
LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 100}
CONFIGS = {**{name: real_sizes.target(name) for name in real_sizes.SIZES}, "llama": LLAMA}
SAVED = "SGLANG_MEMORY_SAVER_CUDA_GRAPH"

CAPTURED: list[tuple[dict[str, Any], list[int]]] = [
    ({}, LADDER),
    ({"model": "e2b"}, LADDER),
    ({"model": "e4b"}, LADDER),
    ({"model": "26b-a4b"}, LADDER[:11]),
    ({"model": "31b"}, LADDER[:7]),
    ({"model": "31b", "tp_size": 2}, LADDER[:9]),
    ({"chunked_prefill_size": 1000}, [*LADDER[:8], 1000]),
    ({"chunked_prefill_size": -1}, LADDER),
    ({"memory": T4}, LADDER[:11]),
    ({"max_total_tokens": 300}, [*LADDER[:6], 300]),
    ({"language_model_only": True}, LADDER),
    ({"disaggregation_mode": "prefill"}, LADDER),
    ({"enable_memory_saver": True}, LADDER),  # which leaves graphs alone
    ({"cuda_graph_backend_prefill": "breakable"}, LADDER),  # SGLang would capture 58
    ({"cuda_graph_bs_prefill": [24, 48]}, [24, 48]),
    ({"cuda_graph_config": {"prefill": {"bs": [24, 48]}}}, [24, 48]),
    ({"cuda_graph_bs_prefill": [24, 6000], "chunked_prefill_size": 1000}, [24, 6000]),
    ({"cuda_graph_max_bs_prefill": 6000}, [*LADDER, 6000]),
    ({"cuda_graph_max_bs_prefill": 100}, [*LADDER[:4], 100]),
    ({"cuda_graph_max_bs_prefill": 2048, "chunked_prefill_size": 1000}, LADDER[:11]),
]
DECLINED: list[tuple[dict[str, Any], str]] = [
    ({"pp_size": 2}, "--pp-size 2"),
    ({"tp_size": 2, "attn_dp_size": 2}, "--attn-dp-size 2"),
    ({"enable_lora": True}, "--enable-lora"),
    ({"lora_paths": ["some"]}, "--enable-lora"),
    ({"model_impl": "transformers"}, "--model-impl transformers"),
    ({"dcp_size": 2}, "--dcp-size 2"),
    ({"enable_two_batch_overlap": True}, "--enable-two-batch-overlap"),
    ({"moe_a2a_backend": "mooncake"}, "a rule of SGLang's own"),
    ({"enable_memory_saver": True, SAVED: "1"}, f"--enable-memory-saver with {SAVED}=1"),
]
SILENT: list[dict[str, Any]] = [
    {"disable_prefill_cuda_graph": True},
    {"disable_cuda_graph": True},
    {"cuda_graph_backend_prefill": "disabled"},
    {"cuda_graph_config": {"prefill": {"backend": "disabled"}}},
    {"disaggregation_mode": "decode"},
    {"cuda": False},
]
Found = dict[str, list[Any]]
_found: Found = {}


def name_of(case: Any) -> str:
    """The arguments alone name a case."""
    return ", ".join(f"{name}={one}" for name, one in case.items()) if isinstance(case, dict) else ""


def resolve(folder: Path, model: str = TINY, memory: int = 141 * 1024, cuda: bool = True, **arguments: Any) -> list[Any]:
    """Backend and sizes of prefill graphs, and why the patch declines."""
    from sglang.srt.arg_groups import cuda_graph_hook, memory_hook
    from sglang.srt.arg_groups.overrides import resolving_view
    from sglang.srt.arg_groups.resolution_hooks import run_hook
    from sglang.srt.model_executor import cuda_graph_config
    from sglang.srt.server_args import ServerArgs

    os.environ[SAVED] = arguments.pop(SAVED, "0")
    changed: Any = cuda_graph_config
    changed.default_prefill_backend = lambda: "breakable" if cuda else "disabled"
    changed = memory_hook
    changed.get_device_memory_capacity = lambda _: memory
    (folder / model).mkdir(exist_ok=True)
    (folder / model / "config.json").write_text(json.dumps(CONFIGS.get(model)))
    path = folder / model if model in CONFIGS else checkpoints.SHIPPED / model
    given = ServerArgs(model_path=str(path), device="cuda" if cuda else "cpu", **arguments)
    outcome = patching.declare._outcomes[PATCH.name] = patching.Outcome(PATCH.name, PATCH.switch, PATCH.does, "active")
    run_hook(cuda_graph_hook.handle_cuda_graph_config, given)
    run_hook(memory_hook.handle_gpu_memory_settings, given)
    phase = resolving_view(given).cuda_graph_config.prefill
    return [phase.backend, phase.bs, [outcome.reason] if outcome.reason else []]


def resolve_all() -> Found:
    """All cases, in a process that has the patch."""
    applied.apply([PATCH])
    cases = [*(case for case, _ in CAPTURED), *(case for case, _ in DECLINED), *SILENT, {"model": "llama"}]
    with tempfile.TemporaryDirectory() as folder:
        return {name_of(case): resolve(Path(folder), **case) for case in cases}


@pytest.fixture
def found(in_child: Callable[[Callable[[], Any]], Any]) -> Found:
    if not _found:
        for name in ("arg_groups.pipeline", "models.gemma4_causal", "model_executor.runner.prefill_cuda_graph_runner"):
            importlib.import_module(f"sglang.srt.{name}")
        _found.update(in_child(resolve_all))
    return _found


@pytest.mark.parametrize(("case", "sizes"), CAPTURED, ids=name_of)
def test_sizes_reach_as_far_as_they_gain_and_the_operators_stand(case: dict[str, Any], sizes: list[int], found: Found) -> None:
    assert found[name_of(case)] == ["breakable", sizes, []]


@pytest.mark.parametrize(("case", "reason"), DECLINED, ids=name_of)
def test_what_is_declined_is_said(case: dict[str, Any], reason: str, found: Found) -> None:
    backend, _, notes = found[name_of(case)]
    assert backend == "disabled"
    assert [note.startswith(reason) for note in notes] == [True], notes


@pytest.mark.parametrize("case", SILENT, ids=name_of)
def test_where_graphs_are_out_of_the_question_nothing_is_said(case: dict[str, Any], found: Found) -> None:
    """The operator's own choice, a server that prefills nothing, a machine without CUDA: as stock."""
    backend, _, notes = found[name_of(case)]
    assert (backend, notes) == ("disabled", [])


def test_another_model_is_stocks(found: Found) -> None:
    backend, sizes, notes = found["model=llama"]
    assert (backend, len(sizes), notes) == ("breakable", 58, [])
