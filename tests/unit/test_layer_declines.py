"""Decoder layers that our kernels do not take stay SGLang's: each reason, and who does the work."""

import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.layers.layer_boundary.residual.add_norm import NormReadout
from sglang.srt.layers.layernorm import Gemma4RMSNorm, RMSNorm
from sglang.srt.layers.rotary_embedding.base import RotaryEmbedding

from sglang_gemma4 import patching
from sglang_gemma4.models import build, forwards
from sglang_gemma4.models.layers import decoder_layer, qkv_rope

WIDTH, DIM = 32, 16
X = torch.zeros(2, WIDTH)
ODD = torch.nn.LayerNorm(WIDTH)
ON_CPU = "Triton does not run on cpu"


@pytest.fixture(autouse=True)
def applied(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("triple_norm", "layer_tail", "ple_tail", "qkv_rope")
    monkeypatch.setattr(patching.declare, "_outcomes", {name: patching.Outcome(name, "SWITCH", "", "active") for name in names})


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Past the device: a reason that comes after it."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")


def layer_with(**change: Any) -> Any:
    norms = (
        "post_attention_layernorm", "pre_feedforward_layernorm", "pre_feedforward_layernorm_2", "post_feedforward_layernorm",
        "post_feedforward_layernorm_1", "post_feedforward_layernorm_2", "post_per_layer_input_norm",
    )  # fmt: skip
    router = SimpleNamespace(norm=Gemma4RMSNorm(WIDTH, with_scale=False))
    return SimpleNamespace(**{**{name: RMSNorm(WIDTH) for name in norms}, "router": router, "enable_moe_block": True, **change})


def read_of(layer: Any, **change: Any) -> Any:
    inner, apply = change.get("inner", object.__new__(NormReadout)), change.get("apply", layer.post_attention_layernorm)
    return SimpleNamespace(inner=inner, transform=SimpleNamespace(apply=apply))


PLAIN = SimpleNamespace(is_plain_add=True)


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize(
    ("layer", "read", "call", "said"),
    [
        ({"pre_feedforward_layernorm_2": ODD}, {}, (PLAIN, X, X, "", None), "a norm is LayerNorm"),
        ({}, {"inner": object()}, (PLAIN, X, X, "", None), "the residual is read by object"),
        ({}, {"apply": ODD}, (PLAIN, X, X, "", None), "the residual is read by NormReadout"),
        ({}, {}, (SimpleNamespace(is_plain_add=False), X, X, "", None), "the read has update"),
        ({}, {}, (PLAIN, X, X, "fp8", None), "quantisation 'fp8'"),
        ({}, {}, (PLAIN, X, X, "", X), "something to add"),
        ({}, {}, (PLAIN, (X, X), X, "", None), "the hidden state is tuple"),
        ({}, {}, (PLAIN, X.double(), X.double(), "", None), "of torch.float64"),
        ({}, {}, (PLAIN, X, X.half(), "", None), "residual is"),
        ({}, {}, (PLAIN, X[:, ::2], X[:, ::2], "", None), "matrices with contiguous rows"),
    ],
)
def test_norms_after_attention(layer: dict[str, Any], read: dict[str, Any], call: Any, said: str, caplog: pytest.LogCaptureFixture) -> None:
    """Through the hook: SGLang's read is called with what came in, twice, with one line."""
    made = layer_with(**layer)
    build.prepare_layer(None, made)
    update, hidden, residual, quant_format, addition = call
    given = (read_of(made, **read), update, hidden, residual, made.pre_feedforward_layernorm, quant_format, addition)
    stays_stock(lambda stock: forwards.read_after_attention(stock, *given), given, "triple_norm", said, caplog)


def stays_stock(call: Callable[[Any], Any], given: Any, name: str, said: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    seen: list[Any] = []

    def stock(*args: Any, **_: Any) -> str:
        seen.append(args)
        return "SGLang's"

    assert [call(stock) for _ in range(2)] == ["SGLang's"] * 2
    assert all(len(args) == len(given) and all(one is other for one, other in zip(args, given, strict=True)) for args in seen)
    (note,) = patching.declare._outcomes[name].notes
    assert said in note
    assert [said in record.getMessage() for record in caplog.records] == [True]


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize(
    ("change", "hidden", "residual", "said"),
    [
        ({"post_feedforward_layernorm": ODD}, X, X, "a norm is LayerNorm"),
        ({"post_feedforward_layernorm_1": ODD}, X, X, "a norm is LayerNorm"),
        ({}, X.double(), X.double(), "of torch.float64"),
        ({}, (X, X), X, "the hidden state is tuple"),
        ({}, X, X[:1], "residual is"),
    ],
)
def test_the_tail(change: dict[str, Any], hidden: Any, residual: torch.Tensor, said: str, caplog: pytest.LogCaptureFixture) -> None:
    given = (layer_with(has_ple=False, **change), hidden, residual, None, object())
    stays_stock(lambda stock: forwards.next_stream(stock, *given), given, "layer_tail", said, caplog)


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize(
    ("change", "embedding", "said"),
    [
        ({"enable_moe_block": True}, X, "both experts and per-layer embeddings"),
        ({"post_per_layer_input_norm": ODD}, X, "a norm is LayerNorm"),
        ({}, X.half(), "the per-layer embeddings are torch.float16"),
        ({}, torch.zeros(2, 2 * WIDTH)[:, ::2], "the per-layer embeddings are torch.float32 with strides"),
    ],
)
def test_the_tail_with_per_layer_embeddings(
    change: dict[str, Any], embedding: torch.Tensor, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    given = (layer_with(**{"has_ple": True, "enable_moe_block": False, **change}), X, X, embedding, object())
    stays_stock(lambda stock: forwards.ple_tail_next_stream(stock, *given), given, "ple_tail", said, caplog)


def rotary(**change: Any) -> Any:
    made = object.__new__(change.pop("kind", RotaryEmbedding))
    torch.nn.Module.__init__(made)
    rest = {"head_size": DIM, "max_position_embeddings": 64, "base": 1e4}
    for name, value in {"is_neox_style": True, "rotary_dim": DIM, "_force_native": False, **rest, **change}.items():
        setattr(made, name, value)
    return made


class ScaledRotary(RotaryEmbedding):  # type: ignore[misc]
    """A rotation of another kind."""


def attention_with(**change: Any) -> Any:
    norms = {name: Gemma4RMSNorm(DIM, eps=1e-6, with_scale=name != "v_norm") for name in ("q_norm", "k_norm", "v_norm")}
    return SimpleNamespace(**{**norms, "rotary_emb": rotary(), "head_dim": DIM, **change})


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize(
    ("change", "positions", "said"),
    [
        ({"q_norm": Gemma4RMSNorm(DIM, scale_shift=1.0)}, torch.arange(2), "a norm is"),
        ({"v_norm": Gemma4RMSNorm(DIM, eps=1e-6)}, torch.arange(2), "v_norm has a weight"),
        ({"v_norm": Gemma4RMSNorm(DIM, eps=1e-5, with_scale=False)}, torch.arange(2), "more than one epsilon"),
        ({"rotary_emb": rotary(kind=ScaledRotary)}, torch.arange(2), "the rotation is ScaledRotary"),
        ({"rotary_emb": rotary(is_neox_style=False)}, torch.arange(2), "the rotation is"),
        ({"rotary_emb": rotary(rotary_dim=DIM // 2)}, torch.arange(2), "the rotation is"),
        ({"rotary_emb": rotary(_force_native=True)}, torch.arange(2), "the rotation is"),
        ({"head_dim": 48, "rotary_emb": rotary(rotary_dim=48)}, torch.arange(2), "the head dimension is 48"),
        ({"head_dim": 8, "rotary_emb": rotary(rotary_dim=8)}, torch.arange(2), "the head dimension is 8"),
        ({}, torch.zeros(3, 2), "positions are (3, 2)"),
        ({}, torch.arange(3), "positions are (3,)"),
        ({}, torch.arange(4)[::2], "positions are torch.int64 with stride 2"),
        ({}, torch.zeros(2), "positions are torch.float32"),
    ],
)
def test_norms_and_rotation(change: dict[str, Any], positions: torch.Tensor, said: str, caplog: pytest.LogCaptureFixture) -> None:
    given = (attention_with(**change), positions, X, object())
    stays_stock(lambda stock: forwards.normed_and_rotated(stock, *given), given, "qkv_rope", said, caplog)


@pytest.mark.usefixtures("interpreted")
def test_what_they_take_has_no_reason() -> None:
    layer = layer_with()
    after = decoder_layer.AfterAttention.of(layer)
    assert after.reason_against(read_of(layer), PLAIN, X, X, "", None) is None
    assert decoder_layer.reason_against_tail(layer, X, X) is None
    assert decoder_layer.reason_against_ple(layer_with(enable_moe_block=False), X, X, X) is None
    assert qkv_rope.reason_against(attention_with(), torch.arange(2), X) is None


def test_where_no_kernel_may_run(monkeypatch: pytest.MonkeyPatch) -> None:
    assert decoder_layer.reason_against_tensor(X) == ON_CPU
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert decoder_layer.reason_against_tensor(X) is None
    with monkeypatch.context() as patch:
        patch.setattr(decoder_layer, "is_batch_invariant_mode_enabled", lambda: True)
        assert "deterministic inference" in str(decoder_layer.reason_against_tensor(X))
    with monkeypatch.context() as patch:
        patch.setattr(torch.compiler, "is_compiling", lambda: True)
        assert "torch.compile" in str(decoder_layer.reason_against_tensor(X))
