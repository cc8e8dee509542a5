"""Memory kept beside weights and KV: against what engines took, in SGLang's own resolution of arguments, and the lines of the log."""

import importlib
import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from sglang_gemma4 import patching
from sglang_gemma4.attention import fixed_flash
from sglang_gemma4.attention.flash_prefill import Kind
from sglang_gemma4.memory import given, reserve
from sglang_gemma4.memory.reserve import GIB, MIB, Reserve, Steps
from sglang_gemma4.models import model_shape
from sglang_gemma4.models.schedule import prefill_sizes
from sglang_gemma4.patches import load
from sglang_gemma4.patching import switches
from sglang_gemma4.tiny import real_sizes
from tests.harness import applied

PATCH = load("memory_reserve")
H100, H200 = 81_559, 143_771
"""MiB, as nvidia-smi lists them."""
LADDER = prefill_sizes.capture_sizes(2048)
MTP = Steps(8192, 320, 29, LADDER, draft=True, images=False, logprobs=False)
# GiB on an H200: the card's peak, what it held before the start, weights with the draft, KV, and the image transport's other process.
PEAKS = [
    ("26b-a4b", replace(MTP, decode_graphs=5, prefill_graphs=[]), 122.72, 48.971 + 0.801, 68.377, 0.0),
    ("26b-a4b", replace(MTP, decode_graphs=5), 118.32, 48.971 + 0.801, 62.720, 1.36),
    ("26b-a4b", MTP, 121.75, 48.971 + 0.801, 66.016, 1.36),
    ("26b-a4b", MTP, 123.55, 48.971 + 0.801, 66.016, 1.36),  # prefill beside verify
    ("e2b", Steps(8192, 256, 52, [], draft=False, images=False, logprobs=False), 123.31, 10.0, 108.149, 0.0),
]


def config_of(name: str) -> Any:
    import transformers

    return transformers.Gemma4Config(**{key: value for key, value in real_sizes.target(name).items() if key != "architectures"})


def kept(name: str, steps: Steps) -> Reserve:
    return reserve.of(model_shape.text_config(real_sizes.target(name)), config_of(name).vision_config, steps)


@pytest.mark.parametrize(("name", "steps", "peak", "weights", "pools", "others"), PEAKS)
def test_engines_took_what_is_calculated(name: str, steps: Steps, peak: float, weights: float, pools: float, others: float) -> None:
    took = peak - reserve.CONTEXT / GIB - weights - pools - others
    found = kept(name, steps)
    assert took < found.total / GIB
    assert took - 1.2 <= (found.total - found.safety) / GIB <= took + 0.7


def test_a_larger_step_takes_more() -> None:
    base = kept("26b-a4b", MTP).total
    for other in (
        replace(MTP, chunk=16_384),
        replace(MTP, rows=1280),
        replace(MTP, decode_graphs=60),
        replace(MTP, prefill_graphs=prefill_sizes.capture_sizes(4096)),
        replace(MTP, images=True),
        replace(MTP, logprobs=True),
    ):
        assert kept("26b-a4b", other).total > base, other
    assert kept("31b", MTP).total > base


def test_keys_in_order_for_flash_attention_in_graphs() -> None:
    """Two KV heads of 512 in bfloat16, keys and values."""
    ordered = 2048 + fixed_flash.PREFIX_KEYS
    joined = replace(MTP, joined=True)
    more = kept("26b-a4b", replace(joined, ordered_keys=ordered)).graphs - kept("26b-a4b", joined).graphs
    assert more == ordered * 4096 == 136 * MIB
    assert more == fixed_flash.buffer_bytes(Kind(16, 2, 512, -1), 2048, fixed_flash.PREFIX_KEYS, torch.bfloat16)


def test_two_ranks_share_a_layer_s_width() -> None:
    text = model_shape.text_config(real_sizes.target("31b"))
    assert reserve.chunk_bytes_a_token(text, 2) < 0.65 * reserve.chunk_bytes_a_token(text)


def test_an_80_gb_card_gets_more_kv_than_by_sglang_s_rule() -> None:
    need = kept("26b-a4b", replace(MTP, rows=256, images=True, logprobs=True))
    found = reserve.fraction(need.total, H100 * MIB)
    stock = reserve.sglang_fraction(H100 * MIB, 8192, 64, len(LADDER), config_of("26b-a4b").vision_config)
    assert stock == pytest.approx(0.763, abs=0.002)
    assert 0.88 < found < 0.93
    with pytest.raises(ValueError, match=r"90.0 GiB are to be kept of a GPU with 78.4 GiB free; take a smaller chunk or model"):
        reserve.fraction(90 * GIB, H100 * MIB)


CASES: dict[str, dict[str, Any]] = {
    "stock": {"reserve": ""},
    "auto": {"reserve": "auto"},
    "text": {"reserve": "auto", "language_model_only": True},
    "number": {"reserve": "4"},
    "typed": {"reserve": "auto", "mem_fraction_static": 0.7},
    "llama": {"reserve": "auto", "model": "llama"},
    "cpu": {"reserve": "auto", "device": "cpu"},
    "pp": {"reserve": "auto", "pp_size": 2},
    "h200": {"reserve": "auto", "memory": H200},
}
LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 100}
_found: dict[str, tuple[float, list[str], str]] = {}


def resolve(folder: Path, reserve: str, model: str = "26b-a4b", memory: int = H100, device: str = "cuda", **arguments: Any) -> Any:
    """The fraction that SGLang resolves, what the patch tells, and why it declines."""
    from sglang.srt.arg_groups import cuda_graph_hook, memory_hook
    from sglang.srt.arg_groups.overrides import resolving_view
    from sglang.srt.arg_groups.resolution_hooks import run_hook
    from sglang.srt.server_args import ServerArgs

    os.environ[switches.RESERVE_GIB] = reserve
    changed: Any = memory_hook
    changed.get_device_memory_capacity = lambda _: memory
    (folder / model).mkdir(exist_ok=True)
    (folder / model / "config.json").write_text(json.dumps(LLAMA if model == "llama" else real_sizes.target(model)))
    args = ServerArgs(model_path=str(folder / model), device=device, max_running_requests=64, **arguments)
    outcome = patching.declare._outcomes[PATCH.name] = patching.Outcome(PATCH.name, PATCH.switch, PATCH.does, "active")
    run_hook(cuda_graph_hook.handle_cuda_graph_config, args)
    run_hook(memory_hook.handle_gpu_memory_settings, args)
    return resolving_view(args).mem_fraction_static, list(outcome.facts), outcome.reason


def resolve_all() -> Any:
    """All cases, in a process that has the patch."""
    applied.apply([PATCH])
    with tempfile.TemporaryDirectory() as folder:
        return {name: resolve(Path(folder), **case) for name, case in CASES.items()}


@pytest.fixture
def found(in_child: Callable[[Callable[[], Any]], Any]) -> dict[str, tuple[float, list[str], str]]:
    if not _found:
        for name in ("arg_groups.pipeline", "managers.scheduler"):
            importlib.import_module(f"sglang.srt.{name}")
        _found.update(in_child(resolve_all))
    return _found


def test_it_applies_only_where_it_is_asked_for(found: dict[str, tuple[float, list[str], str]]) -> None:
    fraction, told, reason = found["stock"]
    assert (told, reason) == ([], "")
    vision = config_of("26b-a4b").vision_config
    assert reserve.sglang_fraction(H100 * MIB, 8192, 64, 58, vision) == pytest.approx(fraction, abs=0.02), "SGLang's own 58 sizes at most"
    assert found["typed"][0] == 0.7
    assert found["typed"][2] == "--mem-fraction-static 0.7 was given"
    assert found["llama"][2] == "the model is not a Gemma 4"
    assert found["cpu"][2] == "the device is cpu, not a CUDA GPU"
    assert found["pp"][2] == "only tensor parallelism on one machine is calculated"
    assert all(not found[name][1] for name in ("typed", "llama", "cpu", "pp"))


def test_the_calculated_reserve_in_sglang_s_resolution(found: dict[str, tuple[float, list[str], str]]) -> None:
    fraction, told, reason = found["auto"]
    assert reason == ""
    assert found["stock"][0] + 0.1 < fraction < 0.91
    assert told[0].startswith(f"--mem-fraction-static {fraction:g} ({switches.RESERVE_GIB}=auto): kept beside weights and KV are ")
    assert "for CUDA graphs" in told[0]
    assert "2.0 for safety, and 2.0 more" in told[0]
    assert found["h200"][0] > fraction
    assert found["text"][0] >= fraction


def test_the_operator_s_number_stands_and_too_little_is_said(found: dict[str, tuple[float, list[str], str]]) -> None:
    fraction, told, _ = found["number"]
    assert fraction == pytest.approx(1 - 4 / (H100 / 1024 - reserve.CONTEXT / GIB), abs=0.001)
    assert "4 GiB are kept beside weights and KV, as asked" in told[0]
    assert "less may run out of memory under load" in told[0]


def test_what_the_tokenizer_s_process_holds_is_not_kept_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """1 GiB of features and 100 MiB of embeddings; only where the reserve is ours."""
    from sglang_gemma4.memory import memory_reserve

    kept = 1.0 + 100 / 1024
    monkeypatch.setenv(switches.RESERVE_GIB, "auto")
    assert memory_reserve.keep_no_pool_twice(kept, is_multimodal=True, mm_feature_transport="cuda_ipc") == pytest.approx(100 / 1024)
    assert memory_reserve.keep_no_pool_twice(100 / 1024, is_multimodal=True, mm_feature_transport="cpu") == 100 / 1024
    assert memory_reserve.keep_no_pool_twice(0.0, is_multimodal=False, mm_feature_transport="cuda_ipc") == 0.0
    monkeypatch.delenv(switches.RESERVE_GIB)
    assert memory_reserve.keep_no_pool_twice(kept, is_multimodal=True, mm_feature_transport="cuda_ipc") == kept


def test_what_the_operator_gives_is_checked() -> None:
    name = switches.RESERVE_GIB
    assert given.reserve_gib({}) is None
    assert given.reserve_gib({name: " AUTO "}) == given.AUTO
    assert given.reserve_gib({name: "6.5"}) == 6.5
    for wrong in ("0", "-1", "nan", "inf", "some", "97"):
        with pytest.raises(switches.SwitchError, match=f"{name}={wrong} is neither auto nor a number of GiB above 0 and up to 96; .*unset"):
            given.reserve_gib({name: wrong})
    assert len(given.problems({name: "x", switches.REQUEST_TOKENS: "x"})) == 2


def test_what_is_left_unused_is_said_with_the_flag_that_gives_it_to_kv() -> None:
    from sglang_gemma4.memory import reserve_settings

    need = Reserve(0.6 * GIB, 1.4 * GIB, 3.0 * GIB, "logprobs of prompts")
    said, enough = reserve_settings.line(10 * GIB, need, 78.4 * GIB, 0.85, None)
    assert enough
    assert said == (
        "3.0 GiB left unused after graphs: 10.0 are free, and 3.0 GiB for logprobs of prompts and 2.0 for safety are needed, and 2.0 more "
        "are left; --mem-fraction-static 0.888 would give them to KV"
    )
    assert "--max-total-tokens 9000 bounds" in reserve_settings.line(10 * GIB, need, 78.4 * GIB, 0.85, 9000)[0]
    assert reserve_settings.line(7.2 * GIB, need, 78.4 * GIB, 0.85, None) == ("", True)
    assert reserve_settings.line(4.5 * GIB, need, 78.4 * GIB, 0.85, None) == ("", True)
    said, enough = reserve_settings.line(2 * GIB, need, 78.4 * GIB, 0.95, None)
    assert not enough
    assert said.startswith("only 2.0 GiB are free after graphs")
    assert "use --mem-fraction-static 0.911 or a smaller --chunked-prefill-size" in said
