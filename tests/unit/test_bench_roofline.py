"""The roofline's counts against transformers' models, brute force and the published figures."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import Gemma4AssistantConfig, Gemma4AssistantForCausalLM
from transformers.models.gemma4.modeling_gemma4 import Gemma4ForCausalLM, Gemma4TextModel

from sglang_gemma4.benchmark import card, roofline
from sglang_gemma4.models import model_shape
from sglang_gemma4.tiny import checkpoints, quantisation, real_sizes
from sglang_gemma4.tiny.quantisation import FORMATS

SIZES = tuple(real_sizes.SIZES)
MOE = real_sizes.target("26b-a4b")
H200 = {"bandwidth_gbs": 4300.0, "teraflops": 790.0, "source": "the figures of the published floor"}
STEP: dict[str, Any] = {"batch": 4, "query_tokens": 4, "context": 2000}


def tiny(name: str) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((checkpoints.SHIPPED / name / "config.json").read_text())
    return config


def counted(model: Any) -> dict[str, int]:
    """Parameters of a transformers model in the groups of ``model_shape.parameters``."""
    groups = dict.fromkeys(("embedding", "per-layer embedding", "dense gemm", "moe experts", "norm"), 0)
    for name, parameter in model.named_parameters():
        if "embed_tokens_per_layer" in name:
            group = "per-layer embedding"
        elif "embed_tokens" in name:
            group = "embedding"
        elif ".experts." in name:
            group = "moe experts"
        else:
            group = "dense gemm" if parameter.ndim == 2 else "norm"
        groups[group] += parameter.numel()
    return groups


@pytest.mark.parametrize("size", SIZES)
def test_parameters_of_targets(size: str) -> None:
    config = real_sizes.target(size)
    with torch.device("meta"):
        model = Gemma4TextModel(model_shape.text_config(config))
    assert model_shape.parameters(config) == counted(model)


@pytest.mark.parametrize("size", SIZES)
def test_parameters_of_assistants(size: str) -> None:
    config = real_sizes.assistant(size)
    with torch.device("meta"):
        model = Gemma4AssistantForCausalLM(Gemma4AssistantConfig(**config))
    assert model_shape.parameters(config) == counted(model)


@pytest.mark.parametrize("name", checkpoints.NAMES)
def test_matrix_flops_of_a_forward_pass(name: str) -> None:
    """Two requests of ten tokens through transformers, counted by torch: all matrix products, and the experts' apart."""
    config, batch, tokens = tiny(name), 2, 10
    text = model_shape.text_config(config)
    text._experts_implementation = "eager"
    model = Gemma4ForCausalLM(text).eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(input_ids=torch.arange(100, 100 + batch * tokens).view(batch, tokens), use_cache=False)
    flops = counter.get_flop_counts()
    work = {one.category: one for one in roofline.step_work(config, batch=batch, query_tokens=tokens, context=tokens)}
    experts = sum(sum(ops.values()) for module, ops in flops.items() if module.endswith(".experts"))
    moe = work["moe experts"].flops if "moe experts" in work else 0
    assert moe == experts
    assert (moe > 0) == bool(text.enable_moe_block)
    assert work["dense gemm"].flops + moe == sum(n for op, n in flops["Global"].items() if op in (torch.ops.aten.mm, torch.ops.aten.addmm))


@pytest.mark.parametrize(("ratio", "expected"), [(0.8, 184_320), (0.15, 51_200)])
def test_kv_bytes_of_the_moe_model(ratio: float, expected: int) -> None:
    kv = model_shape.kv_bytes_per_token(MOE)
    assert kv["full"] + ratio * kv["sliding"] == pytest.approx(expected)


def test_shared_layers_own_no_kv_and_read_it_again() -> None:
    """E2B: 15 of 35 layers write, all 35 read; the window of 512 limits 28 of them."""
    config = real_sizes.target("e2b")
    kv = model_shape.kv_bytes_per_token(config)
    work = {one.category: one for one in roofline.step_work(config, batch=1, query_tokens=1, context=10_000)}
    assert kv == {"full": 3 * 2 * 512 * 2, "sliding": 12 * 2 * 256 * 2}
    assert work["kv write"].bytes == 2 * sum(kv.values())  # read once, written once
    read = 7 * 2 * 512 * 2 * 10_000 + 28 * 2 * 256 * 2 * 512
    queries = (7 * 8 * 512 + 28 * 8 * 256) * 2 * 2
    assert work["attention"].bytes == read + queries


def test_a_prefill_s_shared_layers_see_the_last_token() -> None:
    """Of E2B: 15 layers see all tokens, 20 the one that is read; one token more is work for the 15 alone."""
    config = real_sizes.target("e2b")
    few, more = (
        {one.category: one.flops for one in roofline.step_work(config, batch=1, query_tokens=n, context=n, prefill=True)}["activation"]
        for n in (100, 101)
    )
    ple, width = 256, 6144
    assert more - few == 15 * (10 * width + 11 * ple)


@pytest.mark.parametrize("size", ["e2b", "26b-a4b"])
def test_scales_by_token_and_head_are_written_once_and_read_with_their_keys(size: str) -> None:
    config, draft = real_sizes.target(size), real_sizes.assistant(size)
    step: dict[str, Any] = {"batch": 3, "query_tokens": 4, "context": 5000, "kv_bytes": 1, "draft": draft, "draft_steps": 2}
    without, found = ({one.category: one for one in roofline.step_work(config, **step, scale_bytes=scale)} for scale in (0, 4))
    written = sum(model_shape.kv_bytes_per_token(config, kv_bytes=0, scale_bytes=4).values())
    assert found["kv write"].bytes - without["kv write"].bytes == 3 * 4 * written

    def read(of: dict[str, Any], queries: int, context: int, shared: bool) -> int:
        layers = model_shape.layers(model_shape.text_config(of), all_shared=shared)
        return sum(2 * 4 * layer.kv_heads * 3 * model_shape.keys_read(context, queries, layer.window) for layer in layers)

    expected = read(config, 4, 5000, False) + 2 * read(draft, 1, 4996, True)
    assert found["attention"].bytes - without["attention"].bytes == expected
    assert all(found[name] == without[name] for name in found if name not in ("kv write", "attention"))


def test_distinct_experts() -> None:
    assert model_shape.distinct(128, 8, 1) == pytest.approx(8)
    assert model_shape.distinct(128, 8, 100_000) == pytest.approx(128)
    values = [model_shape.distinct(128, 8, tokens) for tokens in (1, 2, 4, 32, 128)]
    assert all(few < many < few * 8 for few, many in pairwise(values))


@pytest.mark.parametrize("size", SIZES)
def test_experts_stand_in_the_roofline_of_a_model_that_has_some(size: str) -> None:
    """The table warns where it finds them: their count is the one of uniform routing, and tokens that route alike need fewer."""
    config = real_sizes.target(size)
    text = model_shape.text_config(config)
    work = {one.category: one for one in roofline.step_work(config, batch=2, query_tokens=1, context=9)}
    assert ("moe experts" in work) == bool(text.enable_moe_block) == (size == "26b-a4b")
    if "moe experts" in work:
        weights = 2 * 3 * text.hidden_size * text.moe_intermediate_size * text.num_hidden_layers  # of one expert in every layer
        assert 15 * weights < work["moe experts"].bytes, "8 experts would do for two tokens that route alike"


@pytest.mark.parametrize("window", [None, 1, 3, 8, 100])
@pytest.mark.parametrize(("context", "queries"), [(1, 1), (9, 1), (9, 4), (9, 9), (20, 13)])
def test_attended_keys(context: int, queries: int, window: int | None) -> None:
    seen = [
        (query, key) for query in range(context - queries, context) for key in range(query + 1) if window is None or query - key < window
    ]
    assert model_shape.keys_attended(context, queries, window) == len(seen)
    assert model_shape.keys_read(context, queries, window) == len({key for _, key in seen})


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("grown", ["batch", "query_tokens", "context"])
def test_more_work_is_never_less(size: str, grown: str) -> None:
    less = roofline.step_work(real_sizes.target(size), **STEP)
    more = roofline.step_work(real_sizes.target(size), **{**STEP, grown: STEP[grown] * 2})
    pairs = list(zip(less, more, strict=True))
    assert all(a.category == b.category and a.bytes <= b.bytes and a.flops <= b.flops for a, b in pairs)
    assert any(a.bytes < b.bytes for a, b in pairs)


def floor_ms(categories: tuple[str, ...] = (), **step: Any) -> float:
    work = roofline.step_work(MOE, draft=real_sizes.assistant("26b-a4b"), draft_steps=3, **step)
    return sum(roofline.floor_microseconds(one, H200) for one in work if not categories or one.category in categories) / 1000


def test_published_floors_of_the_moe_model() -> None:
    assert model_shape.parameters(MOE)["moe experts"] * 2 == pytest.approx(45.7e9, rel=0.002)
    weights = ("moe experts", "dense gemm")
    assert floor_ms(weights, batch=32, query_tokens=4, context=1100) == pytest.approx(12.5, abs=0.3)
    assert 4 <= floor_ms(batch=1, query_tokens=4, context=1100) <= 5


def test_prefill_needs_one_row_of_logits_and_is_bound_by_flops() -> None:
    decode = {one.category: one for one in roofline.step_work(MOE, batch=1, query_tokens=8000, context=8000)}
    prefill = {one.category: one for one in roofline.step_work(MOE, batch=1, query_tokens=8000, context=8000, prefill=True)}
    assert prefill["logits"].bytes * 8000 == decode["logits"].bytes
    gemm = prefill["dense gemm"]
    assert roofline.floor_microseconds(gemm, H200) == gemm.flops / 790e6
    kv = {one.category: one for one in roofline.step_work(MOE, batch=32, query_tokens=1, context=4000)}["attention"]
    assert roofline.floor_microseconds(kv, H200) == kv.bytes / 4300e3


def test_beside_a_profile(tmp_path: Path) -> None:
    """Flags decide the element sizes, the draft passes and the ranks; prefill has no draft passes."""
    for path, config in (("m", MOE), ("d", real_sizes.assistant("26b-a4b"))):
        (tmp_path / path).mkdir()
        (tmp_path / path / "config.json").write_text(json.dumps(config))
    row = {"stage": "decode", "batch": 2, "tokens_per_request": 4, "context_tokens": 500}
    mtp = ["--speculative-algorithm", "NEXTN", "--speculative-draft-model-path", str(tmp_path / "d"), "--speculative-num-steps", "3"]

    def total(flags: list[str], key: str = "bytes", **changed: Any) -> float:
        found = roofline.beside({**row, **changed}, str(tmp_path / "m"), flags, H200)
        assert {name: found[name] for name in H200} == H200
        return float(sum(one[key] for one in found["categories"]))

    plain = total([])
    assert plain < total(mtp)
    assert total(mtp, stage="prefill") == total([], stage="prefill")
    assert total(["--dtype", "float32"]) == pytest.approx(2 * plain, rel=0.001)
    assert total(["--tp", "2"]) == pytest.approx(plain / 2)
    assert total(["--kv-cache-dtype", "fp8_e4m3"]) < plain
    assert total(["--kv-cache-dtype", "fp8_e4m3"]) < total(["--kv-cache-dtype", "int8_per_token_head"]) < plain, "scales beside levels"
    assert total(["--quantization", "fp8"]) < 0.75 * plain
    with pytest.raises(ValueError, match=r"counts bfloat16, --quantization fp8 and compressed-tensors, not awq; leave out"):
        total(["--quantization", "awq"])


@pytest.mark.parametrize("name", FORMATS)
def test_quantised_weights_take_their_bytes(name: str) -> None:
    """As ``capacity`` counts them: all linear layers but routers; the head and the assistant stay in bfloat16."""
    form = FORMATS[name]
    config = MOE | {"quantization_config": quantisation.config(form)}
    found = roofline.weight_bytes(config)
    assert found == pytest.approx(form.bytes_per_weight, abs=3e-4)
    step: dict[str, Any] = {"batch": 80, "query_tokens": 4, "context": 500, "draft": real_sizes.assistant("26b-a4b"), "draft_steps": 3}
    plain, less = (sum(one.bytes for one in roofline.step_work(MOE, **step, weight_bytes=bytes_)) for bytes_ in (None, found))
    text = model_shape.text_config(MOE)
    count = model_shape.parameters(MOE)
    linear = count["dense gemm"] + count["moe experts"] - text.hidden_size * text.num_experts * text.num_hidden_layers
    assert found is not None
    assert plain - less == pytest.approx((2 - found) * linear, rel=1e-3), "every expert is hit"


def test_formats_that_are_not_counted() -> None:
    assert roofline.weight_bytes(MOE) is None
    with pytest.raises(ValueError, match="not gptq"):
        roofline.weight_bytes(MOE | {"quantization_config": {"quant_method": "gptq", "bits": 4}})


@pytest.mark.parametrize("changed", [{"batch": 0}, {"query_tokens": 0}, {"context": 3}])
def test_impossible_steps(changed: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="context"):
        roofline.step_work(MOE, **{**STEP, **changed})


def test_another_model() -> None:
    with pytest.raises(ValueError, match="'llama' is not gemma4_text"):
        roofline.step_work({"model_type": "llama"}, **STEP)


@pytest.mark.skipif(torch.cuda.is_available(), reason="times the CPU")
def test_card_on_the_cpu() -> None:
    found = card.measure()
    assert found["source"].startswith("measured on CPU: ")
    assert 0.1 < found["bandwidth_gbs"] < 2000
    assert 0.001 < found["teraflops"] < 50
