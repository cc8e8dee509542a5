"""Which layers hand a verify step's keys and values on, when they are taken, and what is said where they are not."""

import logging
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.layers.attention.triton_backend import TritonAttnBackend
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.model_executor.forward_context import ForwardContext, forward_context

from sglang_gemma4 import patching
from sglang_gemma4.models.layers import fresh_kv

K, V = torch.ones(8, 2, 16), torch.zeros(8, 2, 16)


@pytest.fixture(autouse=True)
def outcome(monkeypatch: pytest.MonkeyPatch) -> patching.Outcome:
    found = patching.Outcome("fresh_kv", "SWITCH", "", "active")
    monkeypatch.setattr(patching.declare, "_outcomes", {"fresh_kv": found})
    return found


def attention_of(number: int, shares: int | None = None) -> Any:
    """As much of a ``Gemma4Attention`` as is looked at; its KV is layer ``shares``'s, or its own."""
    owner = number if shares is None else shares
    return SimpleNamespace(is_kv_shared_layer=shares is not None, kv_shared_layer_index=shares, attn=SimpleNamespace(layer_id=owner))


@pytest.fixture
def layers() -> list[Any]:
    """Six layers, of which the last two share the KV of 2 and 3, and one that is another stage's."""
    found = [attention_of(number) for number in range(4)] + [attention_of(4, 2), attention_of(5, 3)]
    assert fresh_kv.mark(SimpleNamespace(layers=[*(SimpleNamespace(self_attn=each) for each in found), SimpleNamespace()]))
    assert not fresh_kv.mark(SimpleNamespace(layers=[SimpleNamespace(self_attn=each) for each in found[:4]]))
    return found


def backend_of(kind: type, dtype: torch.dtype) -> Any:
    backend: Any = object.__new__(kind)
    vars(backend).update(token_to_kv_pool=SimpleNamespace(dtype=dtype))
    return backend


@pytest.fixture
def on_triton() -> Iterator[None]:
    with forward_context(ForwardContext(attn_backend=backend_of(TritonAttnBackend, torch.float32))):
        yield


def batch(mode: ForwardMode = ForwardMode.TARGET_VERIFY) -> Any:
    return SimpleNamespace(forward_mode=mode)


@pytest.mark.usefixtures("on_triton")
def test_each_layer_takes_its_owner_s(layers: list[Any], outcome: patching.Outcome) -> None:
    step = batch()
    for number, owner in enumerate(layers[:4]):
        fresh_kv.keep(owner, K + number, V, step)
    assert set(vars(step)[fresh_kv.KEPT]) == {2, 3}, "nobody reads the others"
    for sharing, owner in ((layers[4], 2), (layers[5], 3)):
        k, v = fresh_kv.taken(sharing, 8, step)
        assert k is not None
        assert torch.equal(k, K + owner)
        assert v is V
    assert fresh_kv.taken(layers[4], 4, step) == (None, None), "of other rows"
    assert fresh_kv.taken(layers[4], 8, batch()) == (None, None), "of another step"
    assert outcome.served


@pytest.mark.usefixtures("on_triton")
@pytest.mark.parametrize("mode", [ForwardMode.EXTEND, ForwardMode.DECODE])
def test_only_verify_steps(mode: ForwardMode, layers: list[Any]) -> None:
    step = batch(mode)
    fresh_kv.keep(layers[2], K, V, step)
    assert fresh_kv.KEPT not in vars(step)
    step.__dict__[fresh_kv.KEPT] = {2: (K, V)}
    assert fresh_kv.taken(layers[4], 8, step) == (None, None)


class Other(TritonAttnBackend):  # type: ignore[misc]
    """Whose way to read a step's own keys is not known."""


@pytest.mark.parametrize(
    ("kind", "dtype", "said"),
    [
        (Other, torch.float32, "attention is Other, not triton's"),
        (TritonAttnBackend, torch.float8_e4m3fn, "the KV cache is torch.float8_e4m3fn, the model torch.float32"),
    ],
)
def test_what_the_pool_holds_otherwise_is_read_back_and_said_once(
    kind: type, dtype: torch.dtype, said: str, layers: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    step = batch()
    with forward_context(ForwardContext(attn_backend=backend_of(kind, dtype))), caplog.at_level(logging.INFO):
        for owner in layers[2:4]:
            fresh_kv.keep(owner, K, V, step)
    assert fresh_kv.taken(layers[4], 8, step) == (None, None)
    lines = [line for line in caplog.messages if "fresh_kv" in line]
    assert lines == [f"sglang-gemma4: fresh_kv declined: a verify step's keys are read back from the pool: {said}"]
