"""Adapters in SGLang's form: names, sizes, what is missing and what is refused; no engine."""

import re
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.layers.linear import MergedColumnParallelLinear, QKVParallelLinear, RowParallelLinear
from sglang.srt.layers.moe.fused_moe_triton import FusedMoE
from sglang.srt.layers.quantization.fp8 import Fp8MoEMethod
from sglang.srt.layers.quantization.unquant import UnquantizedFusedMoEMethod

from sglang_gemma4.models import lora_adapter, lora_targets
from sglang_gemma4.models.lora_adapter import AdapterRefusedError
from sglang_gemma4.models.lora_targets import LoraTargets

HIDDEN, HEADS, HEAD, KV, INNER, EXPERTS, EXPERT, RANK = 8, 2, 4, 1, 6, 3, 5, 2
STEM = "base_model.model.model.language_model.layers"


def bare(kind: type, **attributes: Any) -> Any:
    made: Any = object.__new__(kind)
    torch.nn.Module.__init__(made)
    made.__dict__.update(attributes)
    return made


def decoder_layer(head: int, experts: bool) -> Any:
    qkv = bare(QKVParallelLinear, input_size=HIDDEN, head_size=head, total_num_heads=HEADS, total_num_kv_heads=KV)
    attention = SimpleNamespace(qkv_proj=qkv, o_proj=bare(RowParallelLinear, input_size=HEADS * head, output_size=HIDDEN))
    gate_up = bare(MergedColumnParallelLinear, input_size=HIDDEN, output_sizes=[INNER, INNER])
    mlp = SimpleNamespace(gate_up_proj=gate_up, down_proj=bare(RowParallelLinear, input_size=INNER, output_size=HIDDEN))
    return SimpleNamespace(self_attn=attention, mlp=mlp, enable_moe_block=experts, per_layer_input_gate=None)


@pytest.fixture
def targets() -> LoraTargets:
    """A sliding and a full layer, whose values are its keys."""
    config = SimpleNamespace(
        num_hidden_layers=2, layer_types=["sliding_attention", "full_attention"], attention_k_eq_v=True, hidden_size=HIDDEN,
        num_experts=EXPERTS, moe_intermediate_size=EXPERT, enable_moe_block=True,
    )  # fmt: skip
    text = SimpleNamespace(config=config, layers=[decoder_layer(HEAD, True), decoder_layer(2 * HEAD, True)], start_layer=0, end_layer=2)
    return LoraTargets(SimpleNamespace(model=text))


def pair(module: str, inputs: int, outputs: int, fill: float = 1.0) -> dict[str, torch.Tensor]:
    return {
        f"{module}.lora_A.weight": torch.full((RANK, inputs), fill),
        f"{module}.lora_B.weight": torch.full((outputs, RANK), fill),
    }


def test_values_that_are_keys_change_with_them(targets: LoraTargets) -> None:
    given = pair(f"{STEM}.1.self_attn.k_proj", HIDDEN, 2 * HEAD, 3.0) | pair(f"{STEM}.1.self_attn.q_proj", HIDDEN, HEADS * 2 * HEAD, 2.0)
    found = lora_adapter.fused(targets, RANK, 1, given)
    a, b = (found[f"layers.1.qkv_proj.lora_{side}.weight"] for side in "AB")
    assert a[:, 0].tolist() == [2, 2, 3, 3, 3, 3]
    assert b[:, 0].tolist() == [2] * HEADS * 2 * HEAD + [3] * 4 * HEAD


@pytest.mark.parametrize(("part", "place"), [("q_proj", 0), ("k_proj", 1), ("v_proj", 2)])
def test_what_an_adapter_lacks_is_zero(part: str, place: int, targets: LoraTargets) -> None:
    sizes = [HEADS * HEAD, KV * HEAD, KV * HEAD]
    found = lora_adapter.fused(targets, RANK, 0, pair(f"{STEM}.0.self_attn.{part}", HIDDEN, sizes[place]))
    a, b = (found[f"layers.0.qkv_proj.lora_{side}.weight"] for side in "AB")
    assert a.shape == (3 * RANK, HIDDEN)
    assert [float(one.sum()) for one in a.split(RANK)] == [RANK * HIDDEN * (each == place) for each in range(3)]
    assert [float(one.sum()) for one in b.split(sizes)] == [RANK * sizes[place] * (each == place) for each in range(3)]


def test_gate_without_up_and_up_without_gate(targets: LoraTargets) -> None:
    for place, part in enumerate(("gate_proj", "up_proj")):
        b = lora_adapter.fused(targets, RANK, 0, pair(f"{STEM}.0.mlp.{part}", HIDDEN, INNER))["layers.0.gate_up_proj.lora_B.weight"]
        assert [bool(one.any()) for one in b.split(INNER)] == [place == 0, place == 1]


def test_weights_of_a_fused_layer_share_their_a(targets: LoraTargets) -> None:
    found = lora_adapter.fused(targets, RANK, 0, pair(f"{STEM}.0.mlp.gate_up_proj", HIDDEN, 2 * INNER))
    assert found["layers.0.gate_up_proj.lora_A.weight"].shape == (2 * RANK, HIDDEN)


def test_experts_as_peft_adds_them() -> None:
    """``A`` and ``B`` by expert give what PEFT's own ``get_delta_weight`` gives."""
    from peft import LoraConfig, get_peft_model

    class Experts(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate_up_proj = torch.nn.Parameter(torch.zeros(EXPERTS, 2 * EXPERT, HIDDEN))
            self.down_proj = torch.nn.Parameter(torch.zeros(EXPERTS, HIDDEN, EXPERT))

    model = torch.nn.Module()
    model.experts = Experts()
    config = LoraConfig(r=RANK, lora_alpha=RANK, target_modules=[], target_parameters=["experts.gate_up_proj", "experts.down_proj"])
    adapted = get_peft_model(model, config)
    for weight in adapted.parameters():
        torch.nn.init.normal_(weight) if weight.requires_grad else None
    from peft import get_peft_model_state_dict

    saved = {f"{STEM}.0.{name.removeprefix('base_model.model.')}": weight for name, weight in get_peft_model_state_dict(adapted).items()}
    text_config = SimpleNamespace(
        hidden_size=HIDDEN, num_experts=EXPERTS, moe_intermediate_size=EXPERT, num_hidden_layers=1, layer_types=["sliding_attention"]
    )
    text = SimpleNamespace(config=text_config, layers=[decoder_layer(HEAD, True)], start_layer=0, end_layer=1)
    targets = LoraTargets(SimpleNamespace(model=text))
    for name, weight in saved.items():
        lora_adapter.check_weight(targets, RANK, name, weight.shape)
    found = lora_adapter.fused(targets, RANK, 0, saved)
    merged = adapted.merge_and_unload().experts
    for name, stacked in (("gate_up_proj", 2), ("down_proj", 1)):
        a, b = (found[f"layers.0.experts.{name}.lora_{side}.weight"] for side in "AB")
        assert a.shape[1] == stacked * RANK
        torch.testing.assert_close(b @ a[:, :RANK], getattr(merged, name).data)
        assert torch.equal(a[:, :RANK], a[:, -RANK:])


@pytest.mark.parametrize(
    ("name", "shape", "said"),
    [
        ("lm_head.lora_A.weight", (RANK, HIDDEN), "nothing else"),
        (f"{STEM}.0.self_attn.q_proj.lora_B.bias", (8,), "nothing else"),
        (f"{STEM}.0.router.proj.lora_A.weight", (RANK, HIDDEN), "nothing else"),
        ("base_model.model.model.vision_tower.encoder.layers.0.self_attn.q_proj.lora_A.weight", (RANK, HIDDEN), "nothing else"),
        (f"{STEM}.2.mlp.up_proj.lora_A.weight", (RANK, HIDDEN), "the model has 2 layers"),
        (
            f"{STEM}.0.mlp.up_proj.lora_A.weight",
            (RANK + 1, HIDDEN),
            rf"is [{RANK + 1}, {HIDDEN}]; for rank {RANK} this model's is [{RANK}, 8]",
        ),
        (f"{STEM}.1.self_attn.v_proj.lora_A.weight", (RANK, HIDDEN), "layer 1 takes its values from k_proj"),
        (f"{STEM}.0.experts.lora_A.weight", (RANK, HIDDEN), "this model's is one of [[6, 8], [6, 5]]"),
    ],
)
def test_weights_that_are_refused(name: str, shape: tuple[int, ...], said: str, targets: LoraTargets) -> None:
    with pytest.raises(AdapterRefusedError, match=re.escape(said)) as refused:
        lora_adapter.check_weight(targets, RANK, name, shape)
    assert name in str(refused.value)


def test_experts_need_room_from_the_start(targets: LoraTargets) -> None:
    given = (targets, RANK, f"{STEM}.0.experts.lora_A.weight", (RANK * EXPERTS, HIDDEN))
    lora_adapter.check_weight(*given)
    targets.closed = True
    with pytest.raises(AdapterRefusedError, match="no room for adapted experts"):
        lora_adapter.check_weight(*given)


def test_one_of_a_pair_is_refused(targets: LoraTargets) -> None:
    given = pair(f"{STEM}.0.mlp.up_proj", HIDDEN, INNER)
    del given[f"{STEM}.0.mlp.up_proj.lora_B.weight"]
    with pytest.raises(AdapterRefusedError, match="up_proj of layer 0 has lora_A alone"):
        lora_adapter.fused(targets, RANK, 0, given)


ATTENTION = ["o_proj", "qkv_proj"]
FFN = ["down_proj", "gate_up_proj"]


@pytest.mark.parametrize(
    ("config", "layers"),
    [
        ({"target_modules": ["q_proj", "o_proj", "linear"]}, ATTENTION),
        ({"target_modules": ["model.language_model.layers.0.mlp.up_proj"]}, ["gate_up_proj"]),
        ({"target_modules": r".*language_model\.layers\.\d+\.(self_attn|mlp)\.(q|o|down)_proj"}, ["down_proj", *ATTENTION]),
        ({"target_modules": r"model\.layers\.1\.mlp\.gate_proj"}, ["gate_up_proj"]),
        ({"target_modules": "all-linear"}, sorted(ATTENTION + FFN)),
        ({"target_modules": None, "target_parameters": ["experts.down_proj"]}, FFN),
    ],
)
def test_layers_that_a_config_names(config: dict[str, Any], layers: list[str], targets: LoraTargets) -> None:
    assert lora_adapter.layers_asked_for(targets, "some", config) == layers


@pytest.mark.parametrize("config", [{"target_modules": ["proj"]}, {"target_modules": r".*vision_tower.*q_proj"}, {"target_modules": None}])
def test_a_config_that_names_nothing_here(config: dict[str, Any], targets: LoraTargets) -> None:
    with pytest.raises(AdapterRefusedError, match="name nothing that is adapted here; q_proj, k_proj"):
        lora_adapter.layers_asked_for(targets, "some", config)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("rank_pattern", {"q_proj": 4}),
        ("alpha_pattern", {"q_proj": 4}),
        ("lora_bias", True),
        ("bias", "all"),
        ("alora_invocation_tokens", [1]),
    ],
)
def test_settings_that_are_refused(setting: str, value: Any) -> None:
    lora_adapter.check_config("some", {"bias": "none", "rank_pattern": {}, "alora_invocation_tokens": None})
    with pytest.raises(AdapterRefusedError, match=re.escape(f"LoRA adapter some: {setting}={value!r} is not served")):
        lora_adapter.check_config("some", {setting: value})


def test_sglang_wraps_these_and_no_others(targets: LoraTargets) -> None:
    layers = ("self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj", "per_layer_input_gate", "per_layer_projection")
    for model in ("model", "language_model"):
        assert all(targets.should_apply_lora(f"{model}.layers.1.{layer}") for layer in layers)
        assert not targets.should_apply_lora(f"{model}.layers.1.moe.experts")
    assert not any(targets.should_apply_lora(name) for name in ("model.layers.1.router.proj", "vision_tower.layers.1.self_attn.o_proj"))
    targets.experts = True
    assert targets.should_apply_lora("model.layers.1.moe.experts")


def test_sizes_follow_the_layer(targets: LoraTargets) -> None:
    assert [targets.get_hidden_dim("qkv_proj", number) for number in (0, 1)] == [(HIDDEN, 16), (HIDDEN, 32)]
    assert [targets.get_hidden_dim("o_proj", number) for number in (0, 1)] == [(8, HIDDEN), (16, HIDDEN)]
    assert targets.get_hidden_dim("gate_up_proj_moe", 0) == (HIDDEN, 2 * EXPERT)
    assert targets.get_hidden_dim("per_layer_input_gate", 0) == (0, 0)
    with pytest.raises(NotImplementedError, match="embed_tokens"):
        targets.get_hidden_dim("embed_tokens", 0)
    assert targets.names() == {*ATTENTION, *FFN}
    assert set(lora_targets.PARTS) - targets.names() == {"per_layer_input_gate", "per_layer_projection"}


@pytest.mark.parametrize("quantised", [False, True])
def test_adapters_of_quantised_experts_are_refused(monkeypatch: pytest.MonkeyPatch, quantised: bool) -> None:
    method = Fp8MoEMethod if quantised else UnquantizedFusedMoEMethod
    model = torch.nn.Module()
    model.experts = bare(FusedMoE, quant_method=object.__new__(method))
    model.model = SimpleNamespace(config=SimpleNamespace())
    model.weight = torch.nn.Parameter(torch.zeros(1))
    monkeypatch.setattr(lora_targets, "reason_against_device", lambda _device: None)
    reason = lora_targets.attach(model).against_experts
    assert (reason or "").startswith("they are quantised; leave experts out of the adapter") is quantised
