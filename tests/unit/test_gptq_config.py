"""GPTQ's layout as compressed-tensors': configs, names, and tensors whose weights are the same."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sglang_gemma4.benchmark.roofline import weight_bytes
from sglang_gemma4.kernels.dequantise import int4_weight
from sglang_gemma4.models import gptq_layout
from sglang_gemma4.models.gptq_config import as_compressed, is_gptq, reason_against
from sglang_gemma4.tiny import checkpoints
from sglang_gemma4.tiny.quantisation import FORMATS
from sglang_gemma4.tiny.quantise import compress
from sglang_gemma4.uses import LAID_OUT_AS
from tests import gptq_checkpoint

GPTQ: dict[str, Any] = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True, "desc_act": False}


@pytest.mark.parametrize(("changes", "reason"), [
    ({}, None),
    ({"dynamic": {"-:.*vision.*": {}}}, None),
    ({"extra_config": {"model.layers.0.mlp.up_proj": {"bits": 16}}}, None),
    ({"bits": 8}, "8 bits, not 4 throughout"),
    ({"dynamic": {"+:.*down_proj": {"bits": 8}}}, "4, 8 bits, not 4 throughout"),
    ({"sym": False}, "levels that are not symmetric"),
    ({"desc_act": True}, "inputs in the order of their activations (desc_act)"),
    ({"group_size": -1}, "one scale for all inputs"),
    ({"dynamic": {"+:.*down_proj": {"group_size": 64}}}, "groups of several sizes"),
    ({"extra_config": {"a": {"bits": 16, "group_size": 128, "sym": False}}}, None),
    ({"extra_config": {"a": {"bits": 4, "sym": False}}}, "levels that are not symmetric"),
    ({"act_bits": 8}, "activations of 8 bits"),
    ({"checkpoint_format": "gptq_v2", "pack_dtype": "int32"}, None),
    ({"checkpoint_format": "marlin"}, "levels packed otherwise (checkpoint_format marlin, pack_dtype int32)"),
    ({"pack_dtype": "int64"}, "levels packed otherwise (checkpoint_format gptq, pack_dtype int64)"),
    ({"lm_head": True}, "a quantised lm_head"),
])  # fmt: skip
def test_what_can_be_read(changes: dict[str, Any], reason: str | None) -> None:
    assert reason_against({**GPTQ, **changes}) == reason


@pytest.mark.parametrize(("given", "known"), [
    (GPTQ, True),
    ({"quant_method": "auto-round", "packing_format": "auto_round:auto_gptq"}, True),
    ({"quant_method": "auto-round", "packing_format": "auto_round:auto_awq"}, False),
    ({"quant_method": "awq"}, False),
    ({}, False),
])  # fmt: skip
def test_whose_layout_it_is(given: dict[str, Any], known: bool) -> None:
    assert is_gptq(given) is known


def test_tensors_have_the_weight_that_compressed_tensors_gives_them() -> None:
    weight = torch.randn(64, 96, generator=torch.Generator().manual_seed(3), dtype=torch.bfloat16)
    parts = compress(weight, FORMATS["w4a16-g32"])
    given = [
        ("a.g_idx", torch.arange(96, dtype=torch.int32) // 32),
        ("a.qweight", gptq_checkpoint.packed(parts["weight_packed"])),
        ("a.qzeros", torch.full((3, 8), gptq_checkpoint.ZEROS["v2"], dtype=torch.int32)),
        ("a.scales", parts["weight_scale"].T.contiguous()),
        ("b.weight", weight),
    ]
    found = dict(gptq_layout.regrouped(given))
    assert set(found) == {"a.weight_packed", "a.weight_shape", "a.weight_scale", "b.weight"}
    assert found["a.weight_shape"].tolist() == [64, 96]
    assert torch.equal(found["a.weight_packed"], parts["weight_packed"])
    rebuilt = int4_weight(found["a.weight_packed"], found["a.weight_scale"]).float()
    assert (rebuilt - weight.float()).abs().max() <= parts["weight_scale"].float().max() * 0.51, "half a level"


@pytest.mark.parametrize("index", [
    [0] * 32 + [2] * 32, [1] * 32 + [0] * 32, [0] * 31 + [1] * 33, [0, 1] * 32, [],
])  # fmt: skip
def test_inputs_out_of_order_are_refused(index: list[int]) -> None:
    with pytest.raises(ValueError, match=r"a\.g_idx does not go through the inputs in order"):
        list(gptq_layout.regrouped([("a.g_idx", torch.tensor(index, dtype=torch.int32))]))


def test_zero_points_of_other_levels_are_refused() -> None:
    zeros = torch.full((2, 2), gptq_checkpoint.ZEROS["v1"], dtype=torch.int32)
    assert not list(gptq_layout.regrouped([("a.qzeros", zeros)]))
    zeros[1, 1] = gptq_checkpoint.ZEROS["v2"]
    with pytest.raises(ValueError, match=r"a\.qzeros holds zero points other than 8"):
        list(gptq_layout.regrouped([("a.qzeros", zeros)]))


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
    config = SimpleNamespace(architectures=[architecture], quantization_config=given)
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


def test_a_checkpoint_whose_tensors_nobody_would_read_is_left_alone() -> None:
    config = model_config(dict(GPTQ))
    gptq_layout.translate(config, is_read=False)
    assert config.hf_config.quantization_config == GPTQ
