"""GPTQ's and AWQ's layouts as compressed-tensors': configs, names, and tensors whose weights are the same."""

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers.models.gemma4.configuration_gemma4 import Gemma4TextConfig

from sglang_gemma4.benchmark.roofline import weight_bytes
from sglang_gemma4.diagnostics import quantised_limits
from sglang_gemma4.kernels.dequantise import packed_weight
from sglang_gemma4.models import gptq_config, gptq_layout
from sglang_gemma4.models.config_files import PreflightError
from sglang_gemma4.models.gptq_config import as_compressed, layout_of, reason_against
from sglang_gemma4.patching.uses import LAID_OUT_AS
from sglang_gemma4.tiny import checkpoints, real_sizes
from sglang_gemma4.tiny.quantisation import FORMATS
from sglang_gemma4.tiny.quantise import compress, decompress
from tests.harness.checkpoints import gptq_checkpoint

GPTQ: dict[str, Any] = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True, "desc_act": False}


AWQ: dict[str, Any] = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}


def schemes(bits: int = 4, symmetric: bool = True) -> dict[str, Any]:
    """What SGLang has for a checkpoint of one scheme, groups of 32."""
    return {"Linear": {"weights": SimpleNamespace(num_bits=bits, group_size=32, symmetric=symmetric)}}


@pytest.mark.parametrize(("changes", "reason"), [
    ({}, None),
    ({"dynamic": {"-:.*vision.*": {}}}, None),
    ({"extra_config": {"model.layers.0.mlp.up_proj": {"bits": 16}}}, None),
    ({"bits": 8}, "8 bits, not 4, beside which single layers may have 8"),
    ({"bits": 8, "dynamic": {"+:.*down_proj": {"bits": 4}}}, "4, 8 bits, not 4, beside which single layers may have 8"),
    ({"dynamic": {"+:.*down_proj": {"bits": 8}}}, None),
    ({"extra_config": {"a": {"bits": 2}}}, "2, 4 bits, not 4, beside which single layers may have 8"),
    ({"sym": False}, "quantised values that are not symmetric"),
    ({"desc_act": True}, "inputs in the order of their activations (desc_act)"),
    ({"group_size": -1}, "one scale for all inputs"),
    ({"dynamic": {"+:.*down_proj": {"group_size": 64}}}, "groups of several sizes"),
    ({"extra_config": {"a": {"bits": 16, "group_size": 128, "sym": False}}}, None),
    ({"extra_config": {"a": {"bits": 4, "sym": False}}}, "quantised values that are not symmetric"),
    ({"act_bits": 8}, "activations of 8 bits"),
    ({"checkpoint_format": "gptq_v2", "pack_dtype": "int32"}, None),
    ({"checkpoint_format": "marlin"}, "quantised values packed otherwise (checkpoint_format marlin, pack_dtype int32)"),
    ({"pack_dtype": "int64"}, "quantised values packed otherwise (checkpoint_format gptq, pack_dtype int64)"),
    ({"lm_head": True}, "a quantised lm_head"),
])  # fmt: skip
def test_what_can_be_read(changes: dict[str, Any], reason: str | None) -> None:
    assert reason_against({**GPTQ, **changes}) == reason


@pytest.mark.parametrize(("changes", "reason"), [
    ({}, None),
    ({"modules_to_not_convert": ["vision_tower", "lm_head"]}, None),
    ({"quant_method": "auto-round", "packing_format": "auto_round:auto_awq", "sym": False}, None),
    ({"bits": 8}, "8 bits, not 4"),
    ({"extra_config": {"a": {"bits": 8}}}, "4, 8 bits, not 4"),
    ({"version": "gemv"}, "quantised values packed otherwise (version gemv)"),
    ({"zero_point": False}, "quantised values without zero points"),
    ({"group_size": -1}, "one scale for all inputs"),
    ({"lm_head": True}, "a quantised lm_head"),
])  # fmt: skip
def test_what_can_be_read_of_awq(changes: dict[str, Any], reason: str | None) -> None:
    assert reason_against({**AWQ, **changes}) == reason


def test_older_names_of_awq_s_config() -> None:
    given = {"quant_method": "awq", "w_bit": 4, "q_group_size": 64, "zero_point": True, "version": "GEMM"}
    assert reason_against(given) is None
    found = as_compressed({**given, "modules_to_not_convert": ["mlp.gate"]}, None)
    weights = found["config_groups"]["group_0"]["weights"]
    assert (weights["group_size"], weights["symmetric"], found[LAID_OUT_AS]) == (64, False, "awq")
    assert re.match(found["ignore"][-1].removeprefix("re:"), "layers.0.mlp.gate_proj"), "parts of names, as AutoAWQ compares them"


@pytest.mark.parametrize(("given", "layout"), [
    (GPTQ, "gptq"),
    ({"quant_method": "auto-round", "packing_format": "auto_round:auto_gptq"}, "gptq"),
    ({"quant_method": "auto-round", "packing_format": "auto_round:auto_awq"}, "awq"),
    ({"quant_method": "awq"}, "awq"),
    ({"quant_method": "auto-round"}, None),
    ({}, None),
])  # fmt: skip
def test_whose_layout_it_is(given: dict[str, Any], layout: str | None) -> None:
    assert layout_of(given) == layout


def test_awq_s_tensors_have_the_weight_that_compressed_tensors_gives_them() -> None:
    weight = torch.randn(64, 96, generator=torch.Generator().manual_seed(3), dtype=torch.bfloat16) + 0.7
    parts = compress(weight, FORMATS["w4a16-asym-g32"])
    given = [(f"a.{name}", tensor) for name, tensor in gptq_checkpoint.awq(parts, 64, 96).items()]
    found = dict(gptq_layout.regrouped(reversed(given), schemes(symmetric=False)))
    assert {name: tensor.shape for name, tensor in found.items()} == {f"a.{name}": tensor.shape for name, tensor in parts.items()}
    for name, tensor in parts.items():
        assert torch.equal(found[f"a.{name}"].long(), tensor.long()) if name != "weight_scale" else torch.equal(found[f"a.{name}"], tensor)
    rebuilt = packed_weight(found["a.weight_packed"], found["a.weight_scale"], zeros=found["a.weight_zero_point"])
    assert torch.equal(rebuilt, decompress({**parts, "weight_scale": parts["weight_scale"].float()}, FORMATS["w4a16-asym-g32"]).float())
    assert len(set(gptq_layout.awq_levels(dict(given)["a.qzeros"]).flatten().tolist())) > 4, "zero points differ"


def test_zero_points_of_larger_groups_are_repeated_with_their_scales() -> None:
    zeros = torch.randint(0, 16, (2, 16), generator=torch.Generator().manual_seed(2))
    words = sum((zeros.view(2, 2, 8)[:, :, one] << (4 * place)) for place, one in enumerate(gptq_checkpoint.AWQ_ORDER))
    assert isinstance(words, torch.Tensor)
    given = [
        ("a.qweight", torch.zeros(96, 2, dtype=torch.int32)),
        ("a.qzeros", words.where(words < 2**31, words - 2**32).int()),
        ("a.scales", torch.ones(2, 16)),
    ]
    found = dict(gptq_layout.regrouped(given, schemes(symmetric=False)))["a.weight_zero_point"]
    levels = torch.stack([(found >> 4 * place) & 15 for place in range(8)], 1).flatten(0, 1)
    assert torch.equal(levels.long(), zeros[[0, 0, 1]].T)


def test_tensors_have_the_weight_that_compressed_tensors_gives_them() -> None:
    weight = torch.randn(64, 96, generator=torch.Generator().manual_seed(3), dtype=torch.bfloat16)
    parts = compress(weight, FORMATS["w4a16-g32"])
    given = [
        ("a.g_idx", torch.arange(96, dtype=torch.int32) // 32),
        ("a.qweight", gptq_checkpoint.packed(parts["weight_packed"])),
        ("a.qzeros", torch.full((3, 8), gptq_checkpoint.ZEROS["v2"][4], dtype=torch.int32)),
        ("a.scales", parts["weight_scale"].T.contiguous()),
        ("b.weight", weight),
    ]
    found = dict(gptq_layout.regrouped(given, schemes()))
    assert set(found) == {"a.weight_packed", "a.weight_shape", "a.weight_scale", "b.weight"}
    assert found["a.weight_shape"].tolist() == [64, 96]
    assert torch.equal(found["a.weight_packed"], parts["weight_packed"])
    rebuilt = packed_weight(found["a.weight_packed"], found["a.weight_scale"]).float()
    assert (rebuilt - weight.float()).abs().max() <= parts["weight_scale"].float().max() * 0.51, "half a level"


@pytest.mark.parametrize("index", [
    [0] * 32 + [2] * 32, [1] * 32 + [0] * 32, [0] * 31 + [1] * 33, [0, 1] * 32, [],
    [0] * 32 + [1] * 16 + [2] * 16,
])  # fmt: skip
def test_inputs_out_of_order_are_refused(index: list[int]) -> None:
    with pytest.raises(ValueError, match=r"a\.g_idx does not go through the inputs in order"):
        list(gptq_layout.regrouped([("a.g_idx", torch.tensor(index, dtype=torch.int32))], schemes()))


@pytest.mark.parametrize(("bits", "half"), [(4, 8), (8, 128)])
def test_zero_points_of_other_levels_are_refused(bits: int, half: int) -> None:
    zeros = torch.full((2, 2), gptq_checkpoint.ZEROS["v1"][bits], dtype=torch.int32)
    assert not list(gptq_layout.regrouped([("a.qzeros", zeros)], schemes(bits)))
    zeros[1, 1] = gptq_checkpoint.ZEROS["v2"][bits]
    with pytest.raises(ValueError, match=rf"a\.qzeros holds zero points other than {half}"):
        list(gptq_layout.regrouped([("a.qzeros", zeros)], schemes(bits)))


@pytest.mark.parametrize(("inputs", "group", "groups"), [
    (704, 128, 6), (2112, 128, 17), (2816, 128, 22), (32, 128, 1), (704, 64, 11), (704, 32, 22), (704, 1024, 1),
])  # fmt: skip
def test_scales_of_larger_groups_are_those_of_groups_of_32(inputs: int, group: int, groups: int) -> None:
    scales = torch.randn(groups, 8, generator=torch.Generator().manual_seed(1))
    given = [("a.scales", scales), ("a.qweight", torch.zeros(inputs // 8, 8, dtype=torch.int32))]
    found = dict(gptq_layout.regrouped(given, schemes()))["a.weight_scale"]
    of_inputs = scales[torch.arange(inputs) // group]
    assert found.shape == (8, inputs // 32)
    assert torch.equal(found.repeat_interleave(32, 1), of_inputs.T)


@pytest.mark.parametrize(("inputs", "groups"), [(704, 5), (704, 7), (704, 23), (48, 2)])
def test_scales_of_no_such_groups_end_the_load(inputs: int, groups: int) -> None:
    given = [("a.qweight", torch.zeros(inputs // 8, 8, dtype=torch.int32)), ("a.scales", torch.ones(groups, 8))]
    said = f"a.scales has {groups} groups for {inputs} inputs, and quantization_config says groups of 32"
    with pytest.raises(ValueError, match=said):
        list(gptq_layout.regrouped(given, schemes()))


def test_levels_without_scales_end_the_load() -> None:
    with pytest.raises(ValueError, match="of the quantised a the checkpoint has qweight only; qweight, scales and AWQ's qzeros are needed"):
        list(gptq_layout.regrouped([("a.qweight", torch.zeros(8, 8, dtype=torch.int32))], schemes()))


MIXED = ("layers.0.self_attn.q_proj", "layers.0.self_attn.k_proj", "layers.0.mlp.down_proj", "layers.0.experts.0.up_proj")
NAMES = [f"{layer}.{part}" for layer in MIXED for part in ("qweight", "scales")]


@pytest.mark.parametrize("changes", [
    {"dynamic": {"+:.*self_attn": {"bits": 8}, "-:.*router": {}}},
    {"quant_method": "auto-round", "extra_config": {MIXED[0]: {"bits": 8}, MIXED[1]: {"bits": 8}, "layers.0.router.proj": {"bits": 16}}},
    {"quant_method": "auto-round", "extra_config": {r"layers\..*self_attn\..*": {"bits": 8}}},
])  # fmt: skip
def test_layers_of_8_bits_have_a_group_of_their_own(changes: dict[str, Any]) -> None:
    given = {**GPTQ, **changes}
    assert gptq_config.reason_against(given) is None
    assert gptq_config.reason_against_layers(given, NAMES) is None
    groups = as_compressed(given, NAMES)["config_groups"]
    assert groups["group_0"]["targets"] == ["Linear"]
    assert groups["group_0"]["weights"]["num_bits"] == 4
    assert groups["group_1"]["weights"] == {**groups["group_0"]["weights"], "num_bits": 8}
    assert groups["group_1"]["targets"] == ["layers.0.self_attn.k_proj", "layers.0.self_attn.q_proj", "layers.0.self_attn.qkv_proj"]


def test_what_the_config_leaves_alone_stays_where_nothing_is_on_disk() -> None:
    auto_round = {
        **GPTQ,
        "quant_method": "auto-round",
        "extra_config": {MIXED[0]: {"bits": 16}, r".*k_proj": {"bits": 16}, "b": {"bits": 4}},
    }
    assert as_compressed(auto_round, None)["ignore"][-2:] == [MIXED[0], "re:.*k_proj$"]
    assert as_compressed({**GPTQ, "dynamic": {r"-:.*\.mlp\.": {}, r"+:.*up": {"bits": 4}}}, None)["ignore"][-1:] == [r"re:.*\.mlp\."]


def test_what_is_one_product_has_the_same_bits() -> None:
    for layer, product in ((MIXED[0], "layers.0.self_attn.qkv_proj"), ("layers.0.experts.1.up_proj", "layers.0.experts")):
        given = {**GPTQ, "dynamic": {re.escape(layer): {"bits": 8}}}
        names = [*NAMES, "layers.0.experts.1.up_proj.qweight"]
        assert re.fullmatch(rf"(4 and 8|8 and 4) bits within {product}", str(gptq_config.reason_against_layers(given, names)))
        assert "are not on disk; download the checkpoint first" in str(gptq_config.reason_against_layers(given, None))
    assert gptq_config.reason_against_layers(GPTQ, None) is None


@pytest.mark.parametrize("capability", [(8, 6), (9, 0)])
def test_26b_a4b_in_groups_of_128_with_8_bits_beside_its_experts_is_let_through(capability: tuple[int, int]) -> None:
    """As AutoRound publishes it: the last of 704 inputs' groups is shorter, attention and the dense FFN have 8 bits."""
    model = real_sizes.target("26b-a4b")
    dense = [
        f"model.language_model.layers.{n}.{part}_proj" for n in range(30) for part in ("self_attn.q", "mlp.gate", "mlp.up", "mlp.down")
    ]
    names = [f"{layer}.qweight" for layer in (*dense, *(f"model.language_model.layers.{n}.experts.0.up_proj" for n in range(30)))]
    given = {**GPTQ, "group_size": 128, "quant_method": "auto-round", "extra_config": {layer: {"bits": 8} for layer in dense}}
    config = {**model, "quantization_config": as_compressed(given, names, model["text_config"])}
    quantised_limits.check(config, {}, capability=capability, cpu_engine=False)
    with pytest.raises(PreflightError, match="Marlin multiplies 8-bit weights by 64 inputs"):
        quantised_limits.check(config, {"tp_size": 2}, capability=capability, cpu_engine=False, keeps_four_bits=True)


def test_groups_that_do_not_divide_the_model_become_groups_of_32() -> None:
    moe, dense = (real_sizes.target(size)["text_config"] for size in ("26b-a4b", "31b"))
    for given, text, expected in ((128, moe, 32), (128, dense, 128), (32, moe, 32), (64, moe, 32), (64, dense, 64), (48, moe, 48)):
        found = as_compressed({**GPTQ, "group_size": given}, (), text)
        assert found["config_groups"]["group_0"]["weights"]["group_size"] == expected


def test_what_stays_as_it_is_follows_from_the_tensors(tmp_path: Path) -> None:
    compressed = tmp_path / "compressed"
    checkpoints.write("tiny-26b-a4b", str(compressed), quantised="w4a16-g32")
    expected = json.loads((compressed / "config.json").read_text())["quantization_config"]
    model = gptq_checkpoint.write(compressed, tmp_path / "gptq")
    names = gptq_layout.tensor_names(str(model), None)
    assert names is not None
    found = as_compressed(GPTQ, names)
    assert set(found["ignore"]) >= set(expected["ignore"])
    assert not [name for name in found["ignore"] if f"{name}.qweight" in names]
    assert found["config_groups"] == expected["config_groups"]
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a.qweight": "1", "b.weight": "2"}}))
    assert gptq_layout.tensor_names(str(model), None) == ["a.qweight", "b.weight"], "files that are not there yet too"
    assert gptq_layout.tensor_names(str(tmp_path), None) is None
    assert gptq_layout.tensor_names("nobody/has-this", None) is None
    assert as_compressed(GPTQ, None)["ignore"] == as_compressed(GPTQ | {"group_size": 128}, None)["ignore"] != []


def test_the_roofline_counts_it_as_it_is_served() -> None:
    assert weight_bytes({"quantization_config": GPTQ}) == 0.5 + 2 / 32
    with pytest.raises(ValueError, match="compressed-tensors, not gptq"):
        weight_bytes({"quantization_config": {**GPTQ, "bits": 8}})


def model_config(given: Any, flag: str | None = None, architecture: str = "Gemma4ForConditionalGeneration") -> Any:
    text = Gemma4TextConfig(**real_sizes.target("26b-a4b")["text_config"])
    config = SimpleNamespace(architectures=[architecture], quantization_config=given, get_text_config=lambda: text)
    return SimpleNamespace(hf_config=config, quantization=flag, model_path="nobody/has-this", revision=None)


@pytest.mark.parametrize("flag", [None, "gptq", "gptq_marlin"])
def test_a_config_is_translated_and_its_own_flag_dropped(flag: str | None) -> None:
    config = model_config(dict(GPTQ), flag)
    gptq_layout.translate(config, is_read=True)
    assert config.hf_config.quantization_config["quant_method"] == "compressed-tensors"
    assert config.hf_config.quantization_config[LAID_OUT_AS] == "gptq"
    assert config.quantization is None


@pytest.mark.parametrize("config", [
    model_config(GPTQ, architecture="LlamaForCausalLM"),
    model_config({**GPTQ, "desc_act": True}, "gptq"),
    model_config({"quant_method": "compressed-tensors"}),
    model_config(None),
])  # fmt: skip
def test_others_are_left_alone(config: Any) -> None:
    before = config.hf_config.quantization_config, config.quantization
    gptq_layout.translate(config, is_read=True)
    assert (config.hf_config.quantization_config, config.quantization) == before


def test_what_its_tensors_would_tell_is_said_where_the_start_ends() -> None:
    """Nothing of the checkpoint is on disk."""
    config = model_config(
        {**GPTQ, "quant_method": "auto-round", "packing_format": "auto_round:auto_gptq", "extra_config": {"a": {"bits": 8}}}
    )
    gptq_layout.translate(config, is_read=True)
    given = {**real_sizes.target("26b-a4b"), "quantization_config": config.hf_config.quantization_config}
    with pytest.raises(PreflightError, match=r"are not on disk; download the checkpoint first \(`hf download`\): SGLang's kernels"):
        quantised_limits.check(given, {}, capability=(9, 0), cpu_engine=False)


def test_a_checkpoint_whose_tensors_nobody_would_read_is_left_alone() -> None:
    config = model_config(dict(GPTQ))
    gptq_layout.translate(config, is_read=False)
    assert config.hf_config.quantization_config == GPTQ
