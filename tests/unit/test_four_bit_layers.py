"""4-bit linear layers of SGLang that stay as their checkpoint has them: which ones, and what multiplies how many rows."""

import gc
import weakref
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from compressed_tensors.compressors import pack_to_int32
from sglang.srt.layers.linear import ReplicatedLinear
from sglang.srt.layers.quantization.compressed_tensors.compressed_tensors import CompressedTensorsConfig

from sglang_gemma4 import patching
from sglang_gemma4.kernels.dense.few_row_linear import MOST_ROWS
from sglang_gemma4.kernels.weights import Grouped, dequantised
from sglang_gemma4.models.layers import few_row_linear, four_bit_layers, weight_formats
from sglang_gemma4.patching import switches

WIDTH, OUTPUTS, ROWS = 128, 96, 8


def layer_of(outputs: int = OUTPUTS, width: int = WIDTH, group: int = 32, **weights: Any) -> Any:
    """SGLang's layer of compressed-tensors' pack-quantized form, not loaded."""
    given = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": group, **weights}
    config = {"format": "pack-quantized", "ignore": [], "config_groups": {"group_0": {"targets": ["Linear"], "weights": given}}}
    made = CompressedTensorsConfig.from_config({**config, "quant_method": "compressed-tensors", "packed_modules_mapping": {}})
    torch.set_default_dtype(torch.bfloat16)
    try:
        return ReplicatedLinear(width, outputs, bias=False, quant_config=made, prefix="proj")
    finally:
        torch.set_default_dtype(torch.float32)


def load(layer: Any) -> torch.Tensor:
    """Levels and scales by SGLang's loaders and what follows them; the values in float32."""
    levels = torch.randint(-8, 8, (layer.output_size, layer.input_size), dtype=torch.int8)
    scale = (2.0 ** torch.randint(-2, 3, (layer.output_size, layer.weight_scale.shape[1]))).bfloat16()  # values and sums are exact
    layer.weight_packed.weight_loader(layer.weight_packed, pack_to_int32(levels, 4))
    layer.weight_scale.weight_loader(layer.weight_scale, scale)
    zeros = torch.zeros(scale.shape, dtype=torch.int8)
    if not layer.scheme.symmetric:
        zeros = torch.randint(-8, 8, scale.shape, dtype=torch.int8)
        layer.weight_zero_point.weight_loader(layer.weight_zero_point, pack_to_int32(zeros, 4, packed_dim=0))
    layer.quant_method.process_weights_after_loading(layer)
    return ((levels.unflatten(1, (zeros.shape[1], -1)) - zeros[..., None]) * scale.float()[..., None]).flatten(1)


def rows(count: int) -> torch.Tensor:
    return torch.randint(-3, 4, (count, WIDTH)).bfloat16()


@pytest.fixture(autouse=True)
def patched(monkeypatch: pytest.MonkeyPatch) -> None:
    """The patch's hooks, on a card as far as layers ask; torch multiplies for Triton."""
    from sglang.srt.layers.quantization.compressed_tensors.schemes import CompressedTensorsWNA16 as Scheme

    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setenv(switches.FOUR_BIT_ROWS, str(ROWS))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *device: (9, 0))
    create, finish, multiply = Scheme.create_weights, Scheme.process_weights_after_loading, Scheme.apply_weights

    def created(scheme: Any, layer: Any, **named: Any) -> None:
        create(scheme, layer, **named)
        four_bit_layers.keep(None, scheme, layer=layer, **named)

    monkeypatch.setattr(Scheme, "create_weights", created)
    monkeypatch.setattr(Scheme, "process_weights_after_loading", lambda scheme, layer: four_bit_layers.finish(finish, scheme, layer))
    monkeypatch.setattr(Scheme, "apply_weights", lambda scheme, layer, x, bias: four_bit_layers.multiply(multiply, scheme, layer, x, bias))
    monkeypatch.setattr(four_bit_layers, "_largest", {})
    names = ("four_bit_linear", four_bit_layers.COPIES)
    monkeypatch.setattr(patching.declare, "_outcomes", {name: patching.Outcome(name, "SWITCH", "", "active") for name in names})


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """By which way, and rows or outputs."""
    found: list[tuple[str, int]] = []

    def product(x: torch.Tensor, weight: Any, done: torch.Tensor, gated: bool = False) -> torch.Tensor:
        found.append(("rows", x.shape[0]))
        return (x.float() @ dequantised(weight).T).to(x.dtype)

    def written(weight: Grouped, room: torch.Tensor) -> torch.Tensor:
        found.append(("written out", weight.shape[0]))
        assert room.numel() >= weight.shape.numel()
        return dequantised(weight).to(room.dtype)

    monkeypatch.setattr(few_row_linear, "few_row_linear", product)
    monkeypatch.setattr(four_bit_layers, "write_out", written)
    return found


@pytest.mark.parametrize("symmetric", [True, False], ids=("symmetric", "zeros"))
def test_few_rows_and_many(calls: list[tuple[str, int]], symmetric: bool) -> None:
    model = torch.nn.Module()
    model.proj = layer_of(symmetric=symmetric)
    assert few_row_linear.install(model) == []
    values = load(model.proj)
    found: Any = weight_formats.linear_weight(model.proj)
    assert torch.equal(dequantised(found), values)
    assert found.levels.data_ptr() == model.proj.weight_packed.data_ptr(), "the checkpoint's own words"
    few = rows(ROWS)
    many = torch.cat([few, few])
    for x in (few, many):
        torch.testing.assert_close(model.proj(x)[0], (x.float() @ values.T).bfloat16())
        torch.testing.assert_close(model.proj.quant_method.first_outputs(model.proj, x, 32), (x.float() @ values[:32].T).bfloat16())
    assert calls == [("rows", ROWS), ("rows", ROWS), ("written out", OUTPUTS), ("written out", 32)]


@pytest.mark.parametrize("symmetric", [True, False], ids=("symmetric", "zeros"))
def test_copies_are_made_once_and_for_more_rows_than_ours_takes(calls: list[tuple[str, int]], symmetric: bool) -> None:
    model = torch.nn.Module()
    model.proj, model.other = layer_of(symmetric=symmetric), layer_of(symmetric=symmetric)
    four_bit_layers.want_copies(model, "auto", 0.85)
    assert few_row_linear.install(model) == []
    values, _ = load(model.proj), load(model.other)
    assert calls == [("written out", OUTPUTS)] * 2
    method: Any = model.proj.quant_method
    few = rows(ROWS)
    many, bias = torch.cat([few, few]), torch.ones(OUTPUTS, dtype=torch.bfloat16)
    for x in (few, many, many):
        torch.testing.assert_close(model.proj(x)[0], (x.float() @ values.T).bfloat16())
        torch.testing.assert_close(method.first_outputs(model.proj, x, 32), (x.float() @ values[:32].T).bfloat16())
    torch.testing.assert_close(method.apply(model.proj, few, bias), (few.float() @ values.T + 1).bfloat16())
    assert method.gated_outputs(model.proj, many) is None
    assert calls[2:] == [("rows", ROWS)] * 2
    assert model.proj.scheme.room is None
    (fact,) = patching.declare._outcomes[four_bit_layers.COPIES].facts
    assert "0.0 GiB of the GPU" in fact


@pytest.mark.parametrize(
    ("load_format", "fraction", "reason"),
    [
        ("auto", 0.5, "copies of all 4-bit dense weights take 0.0 GiB, more than 1/16 of this server's 0.0 GiB of the GPU"),
        ("sharded_state", 1.0, "--load-format sharded_state, with which tensors may come after layers were finished"),
    ],
)
def test_copies_that_are_large_or_would_be_of_nothing_are_not_made(
    load_format: str, fraction: float, reason: str, calls: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(four_bit_layers, "_memory", lambda _device: 2 * 16 * 2 * 3 * OUTPUTS * WIDTH - 1)
    layers = torch.nn.ModuleList(layer_of() for _ in range(3))
    four_bit_layers.want_copies(layers, load_format, fraction)
    for layer in layers:
        load(layer)
        assert (layer.scheme.copy, layer.scheme.room.numel()) == (None, OUTPUTS * WIDTH)
    assert calls == []
    found = patching.declare._outcomes[four_bit_layers.COPIES]
    assert (found.state, reason in found.reason) == ("declined", True)


def test_tensors_that_come_after_a_layer_was_finished_are_multiplied(calls: list[tuple[str, int]]) -> None:
    """As with --load-format sharded_state."""
    model, sharded = torch.nn.Module(), torch.nn.Module()
    model.proj, sharded.proj = layer_of(), layer_of()
    values = load(model.proj)
    four_bit_layers.want_copies(sharded, "sharded_state", 0.85)
    sharded.proj.quant_method.process_weights_after_loading(sharded.proj)
    for name, given in sharded.proj.named_parameters():
        given.data.copy_(dict(model.proj.named_parameters())[name].data)
    x = rows(4 * ROWS)
    torch.testing.assert_close(sharded.proj(x)[0], (x.float() @ values.T).bfloat16())


def test_without_few_row_linear_all_rows_are_for_cublas(calls: list[tuple[str, int]]) -> None:
    layer = layer_of()
    values, x = load(layer), rows(2)
    torch.testing.assert_close(layer(x)[0], (x.float() @ values.T).bfloat16())
    assert calls == [("written out", OUTPUTS)]


def test_one_room_for_the_largest() -> None:
    layers = [layer_of(), layer_of(2 * OUTPUTS), layer_of(OUTPUTS, 2 * WIDTH)]
    for layer in layers:
        load(layer)
    room = layers[0].scheme.room
    assert (room.numel(), room.dtype) == (2 * OUTPUTS * WIDTH, torch.bfloat16)
    assert all(layer.scheme.room is room for layer in layers)
    kept = weakref.ref(room)
    del layers, layer, room
    gc.collect()
    assert kept() is None


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ({"num_bits": 8}, "weights of 8 bits"),
        ({"actorder": "group"}, "inputs in another order"),
        ({"group": 16}, "groups of 16 in 128 inputs; 32, 64, 128 are supported"),
        ({"strategy": "channel", "group": None}, "groups of -1 in 128 inputs"),
    ],
    ids=str,
)
def test_what_marlin_keeps(weights: dict[str, Any], said: str) -> None:
    layer = layer_of(**weights)
    assert not layer.scheme.as_loaded
    (note,) = patching.declare._outcomes["four_bit_linear"].notes
    assert said in note
    assert "CompressedTensorsWNA16" in str(few_row_linear.reason_against_linear(layer))


@pytest.mark.parametrize("value", ["65", "-4", "all"])
def test_a_number_of_rows_that_is_none(value: str) -> None:
    said = rf"{switches.FOUR_BIT_ROWS}={value} is not a whole number of rows from 0 to 64; .* and 0 leaves all to Marlin"
    with pytest.raises(switches.SwitchError, match=said):
        switches.four_bit_rows(None, {switches.FOUR_BIT_ROWS: value})
    (problem,) = switches.check_all({switches.FOUR_BIT_ROWS: value})
    assert problem.startswith(f"{switches.FOUR_BIT_ROWS}={value}")


def test_rows_by_card_and_by_what_is_given() -> None:
    assert switches.four_bit_rows((8, 9), {switches.FOUR_BIT_ROWS: " 64 "}) == switches.MOST_FOUR_BIT_ROWS == MOST_ROWS
    assert switches.four_bit_rows((9, 0), {switches.FOUR_BIT_ROWS: "0"}) == 0
    assert switches.four_bit_rows((9, 0), {}) == switches.HOPPER_FOUR_BIT_ROWS <= MOST_ROWS
    assert [switches.four_bit_rows(card, {}) for card in (None, (8, 0), (8, 9), (10, 0), (12, 0))] == [0] * 5


@pytest.mark.parametrize("name", ["TRITON_INTERPRET", switches.FOUR_BIT_ROWS])
def test_where_nobody_asks_nothing_is_said(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU without the interpreter, a server whose operator leaves 4 bits to Marlin."""
    monkeypatch.delenv(name)
    assert not layer_of().scheme.as_loaded
    assert patching.declare._outcomes["four_bit_linear"].notes == []


def check_before_weights_load(
    monkeypatch: pytest.MonkeyPatch, config: dict[str, Any], dtype: torch.dtype, capability: tuple[int, int], found: str | None = None
) -> None:
    """Of a server on two such cards; ``found``: the method that SGLang reads beside config.json."""
    from sglang.srt.arg_groups import model_override_base

    from sglang_gemma4.diagnostics import start_checks

    hf_config = SimpleNamespace(architectures=["Gemma4ForConditionalGeneration"], to_dict=lambda: config)
    model = SimpleNamespace(hf_config=hf_config, dtype=dtype, quantization=found)
    arguments = SimpleNamespace(quantization=None, load_format="auto", moe_runner_backend="auto", tp_size=2)
    monkeypatch.setattr(model_override_base, "resolved_view", lambda _given: arguments)
    monkeypatch.setattr(model_override_base, "model_config_of", lambda _given: model)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_device: capability)
    monkeypatch.delenv(switches.FOUR_BIT_ROWS)
    monkeypatch.setenv(switches.CPU_ENGINE, "0")
    start_checks.check_weights(None, None)


@pytest.mark.parametrize(
    ("dtype", "capability", "left_out", "kept"),
    [
        (torch.bfloat16, (9, 0), "", True),
        (torch.float16, (9, 0), "", False),
        (torch.bfloat16, (10, 0), "", False),
        (torch.bfloat16, (9, 0), "four_bit_linear", False),
    ],
)
def test_the_check_before_weights_load_knows_which_stay(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, capability: tuple[int, int], left_out: str, kept: bool
) -> None:
    """26B-A4B on two ranks: 1,056 inputs are for our kernels, and no multiple of Marlin's 64."""
    from sglang_gemma4.models.config_files import PreflightError
    from sglang_gemma4.tiny import quantisation, real_sizes

    config = real_sizes.target("26b-a4b") | {"quantization_config": quantisation.config(quantisation.FORMATS["w4a16-g32"])}
    monkeypatch.setenv(switches.WITHOUT, left_out)
    with nullcontext() if kept else pytest.raises(PreflightError, match="Marlin multiplies 4-bit weights by 64 inputs"):
        check_before_weights_load(monkeypatch, config, dtype, capability)


def test_a_method_beside_config_json_is_known_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """ModelOpt's hf_quant_config.json."""
    from sglang_gemma4.models.config_files import PreflightError
    from sglang_gemma4.tiny import real_sizes

    with pytest.raises(PreflightError, match=r"quant_method modelopt-fp4 \(NVFP4\): before Blackwell"):
        check_before_weights_load(monkeypatch, real_sizes.target("26b-a4b"), torch.bfloat16, (9, 0), "modelopt_fp4")
