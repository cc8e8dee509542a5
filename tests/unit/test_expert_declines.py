"""Batches that our experts' kernels do not take go to what stood there before, with one log line."""

import gc
import importlib
import logging
import sys
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.layers.moe.token_dispatcher.base import DispatchOutputFormat
from sglang.srt.layers.moe.topk import StandardTopKOutput
from sglang.srt.layers.moe.utils import MoeRunnerBackend
from sglang.srt.layers.quantization.compressed_tensors.compressed_tensors import CompressedTensorsFusedMoEMethod
from sglang.srt.layers.quantization.compressed_tensors.schemes import CompressedTensorsWNA16TritonMoE
from sglang.srt.layers.quantization.unquant import UnquantizedFusedMoEMethod

from sglang_gemma4 import patching
from sglang_gemma4.models import build, experts
from sglang_gemma4.models.layers import expert_layers
from sglang_gemma4.models.schedule import dense_beside_experts

TOKENS, HIDDEN, INNER, EXPERTS = 4, 64, 32, 8
CONFIG = {
    "activation": "gelu", "is_gated": True, "apply_router_weight_on_input": False, "no_combine": False, "routed_scaling_factor": None,
}  # fmt: skip


def method_with(backend: MoeRunnerBackend = MoeRunnerBackend.TRITON, **attributes: Any) -> Any:
    made: Any = object.__new__(UnquantizedFusedMoEMethod)
    torch.nn.Module.__init__(made)
    runner = SimpleNamespace(runner_backend=backend)
    for name, value in {"runner": runner, "_aiter_runner": None, "with_bias": False, "w13_swiglu_interleaved": False, **attributes}.items():
        setattr(made, name, value)
    return made


def batch(**change: Any) -> Any:
    routed = StandardTopKOutput(torch.rand(TOKENS, 2), torch.zeros(TOKENS, 2, dtype=torch.int32), torch.zeros(0))
    given = {"hidden_states": torch.randn(TOKENS, HIDDEN), "topk_output": routed, "hidden_states_pre_quant": None}
    return SimpleNamespace(**{"format": DispatchOutputFormat.STANDARD, **given, **change})


class Before:
    """SGLang's ``run_moe_core``: keeps the batches it is given."""

    def __init__(self) -> None:
        self.batches: list[Any] = []

    def __call__(self, dispatch_output: Any) -> str:
        self.batches.append(dispatch_output)
        return "SGLang's"


def layer_with(**change: Any) -> Any:
    config = {name: change.pop(name, value) for name, value in CONFIG.items()}
    weights = {"w13_weight": torch.zeros(EXPERTS, 2 * INNER, HIDDEN), "w2_weight": torch.zeros(EXPERTS, HIDDEN, INNER)}
    return SimpleNamespace(
        **{"quant_method": method_with(), "moe_runner_config": SimpleNamespace(**config), "run_moe_core": Before(), **weights, **change}
    )


def moe_of(layer: Any) -> Any:
    """A ``Gemma4MoE`` around such a layer."""
    config = SimpleNamespace(custom_routing_function=lambda *given: given, top_k=2)
    moe = torch.nn.Module()
    moe.experts, moe.topk, moe.per_expert_scale = layer, SimpleNamespace(topk_config=config), torch.ones(EXPERTS)
    return moe


@pytest.mark.parametrize(
    ("logits", "why"),
    [
        (torch.zeros(17, EXPERTS), "too many tokens"),
        (torch.zeros(0, EXPERTS), "none"),
        (torch.zeros(2, EXPERTS), "on a CPU, not interpreted"),
        (torch.zeros(2, EXPERTS, dtype=torch.float64), "a dtype of nobody's"),
    ],
)
def test_routing_that_stays_sglang_s(logits: torch.Tensor, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if logits.dtype == torch.float64:
        monkeypatch.setenv("TRITON_INTERPRET", "1")
    moe = moe_of(layer_with())
    expert_layers.take_few_tokens(moe, HIDDEN, "gelu_pytorch_tanh")
    hidden = torch.zeros(logits.shape[0], HIDDEN)
    assert moe.topk.topk_config.custom_routing_function(hidden, logits, 2, True) == (hidden, logits, 2, True), why


@pytest.mark.parametrize("name", ["SGLANG_SIMULATE_UNIFORM_EXPERTS", "SGLANG_SIMULATE_ROUND_ROBIN_EXPERTS"])
def test_simulated_experts_stay_sglang_s(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are written over the ids, whose blocks would be others'."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setenv(name, "1")
    moe = moe_of(layer_with())
    expert_layers.take_few_tokens(moe, HIDDEN, "gelu_pytorch_tanh")
    for _ in range(2):
        assert moe.topk.topk_config.custom_routing_function(None, torch.zeros(2, EXPERTS), 2, True)[0] is None
    (note,) = patching.declare._outcomes["few_token_experts"].notes
    assert note.startswith("SGLang chooses the experts: simulated experts")


def test_logits_that_are_written_over_stay_sglang_s(monkeypatch: pytest.MonkeyPatch, server: SimpleNamespace) -> None:
    """What was chosen from them before would be handed out for the new ones, which lie in the same tensor."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    server.moe.ep_dispatch_algorithm = "fake"
    moe = moe_of(layer_with())
    expert_layers.take_few_tokens(moe, HIDDEN, "gelu_pytorch_tanh")
    assert moe.topk.topk_config.custom_routing_function(None, torch.zeros(2, EXPERTS), 2, True)[0] is None
    assert moe.few_token_experts.against_routing is not None, "of which the router's product asks too"


def test_deterministic_inference_keeps_sglang_s_routing(monkeypatch: pytest.MonkeyPatch, server: SimpleNamespace) -> None:
    """Its weights are summed in another order: 16 tokens and 17 would give a token different ones."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    server.deterministic.enable_deterministic_inference = True
    moe = moe_of(layer_with())
    expert_layers.take_few_tokens(moe, HIDDEN, "gelu_pytorch_tanh")
    assert moe.topk.topk_config.custom_routing_function(None, torch.zeros(2, EXPERTS), 2, True)[0] is None


def test_after_a_batch_that_was_declined_the_routing_is_sglang_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    layer = layer_with(quant_method=object())
    moe = moe_of(layer)
    expert_layers.take_few_tokens(moe, HIDDEN, "gelu_pytorch_tanh")
    monkeypatch.setattr("sglang_gemma4.kernels.experts.expert_routing.expert_routing", lambda *given: ("weights", "ids", "blocks"))
    route, logits = moe.topk.topk_config.custom_routing_function, torch.zeros(TOKENS, EXPERTS)
    assert route(None, logits, 2, True) == ("weights", "ids")
    assert layer.run_moe_core(batch()) == "SGLang's"
    assert route(None, logits, 2, True)[0] is None


def test_counters_come_back_with_the_weights() -> None:
    """SGLang stores a model's buffers while the memory of its weights is given away."""
    moe = moe_of(layer_with())
    expert_layers.take_few_tokens(moe, HIDDEN, "gelu_pytorch_tanh")
    assert {name: int(buffer.abs().sum()) for name, buffer in moe.named_buffers()} == {"few_token_experts_done": 0}
    assert not moe.state_dict()


@pytest.fixture(autouse=True)
def server(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What SGLang's own configuration says, and a report in which notes are kept."""
    names = ("grouped_experts", "few_token_experts", "prefill_experts", "dense_beside_experts")
    monkeypatch.setattr(patching.declare, "_outcomes", {name: patching.Outcome(name, "SWITCH", "", "active") for name in names})
    flags = SimpleNamespace(
        moe=SimpleNamespace(enable_fused_moe_sum_all_reduce=False, ep_dispatch_algorithm=None),
        deterministic=SimpleNamespace(enable_deterministic_inference=False),
    )
    monkeypatch.setattr("sglang.srt.runtime_context.get_exec", lambda: flags)
    return flags


def runs_before(layer: Any, given: Any, said: str, caplog: pytest.LogCaptureFixture, activation: str = "gelu_pytorch_tanh") -> None:
    """Twice, with one line; our kernel would have raised on ``object()``."""
    before = layer.run_moe_core
    expert_layers.take_few_tokens(moe_of(layer), HIDDEN, activation)
    caplog.set_level(logging.WARNING)
    assert [layer.run_moe_core(given) for _ in range(2)] == ["SGLang's"] * 2
    assert layer.run_moe_core.steps == 0
    assert all(one is given for one in before.batches)
    (note,) = patching.declare._outcomes["few_token_experts"].notes
    assert said in note
    assert [said in record.getMessage() for record in caplog.records] == [True]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"quant_method": object()}, "the weights are quantised (object)"),
        ({"quant_method": method_with(MoeRunnerBackend.FLASHINFER_CUTLASS)}, "--moe-runner-backend flashinfer_cutlass"),
        ({"quant_method": method_with(runner=None)}, "--moe-runner-backend none"),
        ({"activation": "silu"}, "activation gelu_pytorch_tanh, silu in the runner"),
        ({"is_gated": False}, "gated gelu_pytorch_tanh is supported"),
        ({"apply_router_weight_on_input": True}, "router weights on the input"),
        ({"no_combine": True}, "no sum over experts"),
        ({"routed_scaling_factor": 2.5}, "a scaled sum"),
        ({"quant_method": method_with(with_bias=True)}, "experts with a bias"),
        ({"quant_method": method_with(w13_swiglu_interleaved=True)}, "interleaved gates"),
    ],
)
def test_a_layer_that_is_not_taken(change: dict[str, Any], said: str, caplog: pytest.LogCaptureFixture) -> None:
    runs_before(layer_with(**change), batch(), said, caplog)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"topk_output": SimpleNamespace(format=None)}, "the experts' kernel does the routing"),
        ({"hidden_states_pre_quant": object()}, "the activation is quantised"),
        ({"format": DispatchOutputFormat.DEEPEP_LL}, "as deepep_ll"),
        ({}, "Triton does not run on cpu"),
    ],
)
def test_a_batch_that_is_not_taken(
    change: dict[str, Any], said: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "topk_output" in change:
        monkeypatch.setattr("sglang.srt.layers.moe.topk.TopKOutputChecker.format_is_standard", lambda routed: False)
    runs_before(layer_with(), batch(**change), said, caplog)


@pytest.mark.parametrize(
    ("x", "layer", "said"),
    [
        (torch.randn(TOKENS, HIDDEN, dtype=torch.float64), {}, "x is torch.float64"),
        (
            torch.randn(TOKENS, HIDDEN),
            {"w13_weight": torch.zeros(EXPERTS, 2 * INNER, HIDDEN).to(torch.float8_e4m3fn)},
            "w13: the weight is torch.float8_e4m3fn and x torch.float32",
        ),
        (torch.randn(HIDDEN, TOKENS).T, {}, "x is not contiguous"),
        (torch.randn(TOKENS, HIDDEN), {"w2_weight": torch.zeros(EXPERTS, HIDDEN, 16)}, "w2 is"),
    ],
)
def test_tensors_that_are_not_taken(
    x: torch.Tensor, layer: dict[str, Any], said: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")  # past the device
    runs_before(layer_with(**layer), batch(hidden_states=x), said, caplog)


@pytest.mark.parametrize(
    ("section", "flag", "said"),
    [
        ("moe", "enable_fused_moe_sum_all_reduce", "a fused all-reduce"),
        ("deterministic", "enable_deterministic_inference", "deterministic"),
    ],
)
def test_a_server_that_is_not_taken(section: str, flag: str, said: str, server: SimpleNamespace, caplog: pytest.LogCaptureFixture) -> None:
    setattr(getattr(server, section), flag, True)
    runs_before(layer_with(), batch(), said, caplog)


def test_symmetric_memory_is_not_taken(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sglang.srt.distributed.device_communicators.pynccl_allocator.is_symmetric_memory_enabled", lambda: True)
    runs_before(layer_with(), batch(), "--enable-symm-mem", caplog)


def test_another_gelu_is_not_taken(caplog: pytest.LogCaptureFixture) -> None:
    runs_before(layer_with(), batch(), "activation gelu, gelu in the runner", caplog, activation="gelu")


@pytest.mark.parametrize("tokens", [0, 17, 31, 321, 1023])
def test_numbers_of_tokens_between_are_nobody_s_notice(tokens: int, caplog: pytest.LogCaptureFixture) -> None:
    layer = layer_with()
    expert_layers.take_groups(layer, "gelu_pytorch_tanh")
    expert_layers.take_few_tokens(moe_of(layer), HIDDEN, "gelu_pytorch_tanh")
    expert_layers.take_many(layer, "gelu_pytorch_tanh")
    assert layer.run_moe_core(batch(hidden_states=torch.zeros(tokens, HIDDEN))) == "SGLang's"
    assert [patching.declare._outcomes[name].notes for name in ("grouped_experts", "few_token_experts", "prefill_experts")] == [[], [], []]


def test_a_chunk_that_is_not_taken(caplog: pytest.LogCaptureFixture) -> None:
    layer = layer_with()
    expert_layers.take_many(layer, "gelu_pytorch_tanh")
    assert layer.run_moe_core(batch(hidden_states=torch.zeros(1024, HIDDEN))) == "SGLang's"
    assert patching.declare._outcomes["prefill_experts"].notes == ["SGLang's kernels compute the experts: Triton does not run on cpu"]


def four_bits() -> Any:
    """A ``FusedMoE`` of 4-bit experts before it is loaded: words ``[experts, inputs / 8, outputs]``."""
    scheme: Any = object.__new__(CompressedTensorsWNA16TritonMoE)
    vars(scheme).update(num_bits=4, sym=True, actorder=None, group_size=32)
    method = object.__new__(CompressedTensorsFusedMoEMethod)
    packed = {
        "w13_weight_packed": torch.zeros(EXPERTS, HIDDEN // 8, 2 * INNER, dtype=torch.int32),
        "w2_weight_packed": torch.zeros(EXPERTS, INNER // 8, HIDDEN, dtype=torch.int32),
        "w13_weight_scale": torch.zeros(EXPERTS, HIDDEN // 32, 2 * INNER, dtype=torch.bfloat16),
    }
    return layer_with(quant_method=method, scheme=scheme, **packed)


def test_room_for_four_bits_is_taken_once_and_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")  # past the device
    layers = [four_bits() for _ in range(3)]
    for layer in layers:
        expert_layers.take_many(layer, "gelu_pytorch_tanh")
    room = layers[0].run_moe_core.room
    assert (room.numel(), room.dtype) == (EXPERTS * 2 * INNER * HIDDEN, torch.bfloat16)
    assert all(layer.run_moe_core.room is room for layer in layers)
    assert layers[0].run_moe_core.least == 2049
    kept = weakref.ref(room)
    del layers, layer, room
    gc.collect()
    assert kept() is None


def test_of_four_bits_groups_take_what_chunks_leave() -> None:
    """On a card whose chunks are not written out too; of other formats the largest are SGLang's."""
    layer, plain = four_bits(), layer_with()
    for each in (layer, plain):
        expert_layers.take_groups(each, "gelu_pytorch_tanh")
    groups = layer.run_moe_core
    assert (groups.least, groups.most, plain.run_moe_core.most) == (17, sys.maxsize, 320)
    expert_layers.take_many(layer, "gelu_pytorch_tanh")
    assert layer.run_moe_core.before is groups


def test_chunks_of_four_bits_are_taken_between_steps_and_what_is_written_out() -> None:
    """Other formats are not; what their kernels do not take, the kernel before does."""
    layer, plain = four_bits(), layer_with()
    for each in (layer, plain):
        expert_layers.take_groups(each, "gelu_pytorch_tanh")
        expert_layers.take_many(each, "gelu_pytorch_tanh")
    before, of_plain = layer.run_moe_core, plain.run_moe_core
    expert_layers.take_chunks(layer, "gelu_pytorch_tanh")
    expert_layers.take_chunks(plain, "gelu_pytorch_tanh")
    chunks = layer.run_moe_core
    assert (chunks.name, chunks.least, chunks.most, chunks.before) == ("chunk_experts", 321, 4096, before)
    assert plain.run_moe_core is of_plain


@pytest.mark.parametrize("older", [False, True])
def test_no_room_is_taken_where_nothing_is_written_out(older: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if older:
        monkeypatch.setenv("TRITON_INTERPRET", "1")
        monkeypatch.setattr(expert_layers, "reason_against_card", lambda device: "the GPU's compute capability is 8.9")
    layer = four_bits()
    expert_layers.take_many(layer, "gelu_pytorch_tanh")
    assert layer.run_moe_core.room is None
    plain = layer_with()
    expert_layers.take_many(plain, "gelu_pytorch_tanh")
    assert (plain.run_moe_core.room, plain.run_moe_core.least) == (None, 1024)


def test_sglang_s_alignment_is_read_as_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lists have room that is no whole number of blocks, and count rows."""
    module = importlib.import_module("sglang.srt.layers.moe.moe_runner.triton_utils.moe_align_block_size")
    aligned = (torch.arange(70), torch.arange(5), torch.tensor([48], dtype=torch.int32))
    monkeypatch.setattr(module, "moe_align_block_size", lambda ids, size, experts: aligned)
    blocks = expert_layers.aligned_blocks(torch.zeros(20, 2), EXPERTS, 16)
    assert blocks.row.tolist() == torch.arange(64).view(4, 16).tolist()
    assert blocks.expert.tolist() == [0, 1, 2, 3]
    assert blocks.count.tolist() == [3]
    assert blocks.count.dtype == torch.int32


@pytest.mark.parametrize(("card", "ranks", "said"), [(False, 1, "there is no CUDA GPU"), (True, 2, "--tp-size 2"), (True, 1, None)])
def test_where_the_dense_ffn_stays_before_the_experts(card: bool, ranks: int, said: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    installed: list[Any] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: card)
    monkeypatch.setattr("sglang.srt.runtime_context.get_parallel", lambda: SimpleNamespace(tp_size=ranks))
    monkeypatch.setattr(dense_beside_experts, "install", installed.append)
    model = SimpleNamespace(config=SimpleNamespace(enable_moe_block=True))
    build.fork_layers(model)
    build.fork_layers(SimpleNamespace(config=SimpleNamespace(enable_moe_block=False)))
    outcome = patching.declare._outcomes["dense_beside_experts"]
    assert (installed, outcome.state) == (([], "declined") if said else ([model], "active"))
    assert not said or said in outcome.reason


def test_outside_a_capture_nothing_is_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    layer = SimpleNamespace(mlp=SimpleNamespace(forward=lambda x: x + 1), moe=SimpleNamespace(forward=lambda x, y: x * y))
    beside = dense_beside_experts.DenseBesideExperts(layer, side=None)  # type: ignore[arg-type]
    assert layer.mlp.forward(torch.ones(1)) == 2
    assert layer.moe.forward(torch.full((1,), 3.0), 2) == 6
    assert (beside.forked, beside.layers) == (False, 0)


def test_a_chunk_of_4_bits_is_asked_of_the_faster_kernel_first(monkeypatch: pytest.MonkeyPatch, server: SimpleNamespace) -> None:
    monkeypatch.setattr(experts, "is_on", lambda name: name not in ("expert_gelu", "moe_tiles"))
    monkeypatch.setattr("sglang_gemma4.kernels.warpgroup_products.reason_against_card", lambda device: None)
    moe = moe_of(four_bits())
    experts.prepare(None, moe, HIDDEN, 0, SimpleNamespace(hidden_activation="gelu_pytorch_tanh"))
    chain, one = [], moe.experts.run_moe_core
    while hasattr(one, "before"):
        chain.append(one.name)
        one = one.before
    assert chain == ["chunk_experts", "prefill_experts", "few_token_experts", "grouped_experts"]
