"""Attention that our kernels do not take goes to SGLang's, with one log line for each reason, and nothing is written before."""

import logging
from typing import Any

import pytest
import torch

from sglang_gemma4 import patching
from sglang_gemma4.attention.decode import DecodeAttention
from sglang_gemma4.attention.prefill import PrefillAttention
from sglang_gemma4.attention.verify import VerifyAttention
from sglang_gemma4.kernels.attention import limits
from sglang_gemma4.kernels.card import Card

POISON = 7.0
REQUESTS, HEADS, KV_HEADS, DIM, TOKENS = 2, 4, 2, 32, 8
FP8 = torch.float8_e4m3fn


@pytest.fixture(autouse=True)
def applied(monkeypatch: pytest.MonkeyPatch) -> None:
    """The patches are in the report, so that a note has somewhere to go."""
    names = ("decode_attention", "prefill_attention", "verify_attention")
    monkeypatch.setattr(patching.declare, "_outcomes", {name: patching.Outcome(name, "SWITCH", "", "active") for name in names})


class Stock:
    """In the place of SGLang's kernel: keeps what it was given."""

    def __init__(self) -> None:
        self.given: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        self.given.append((args, kwargs))


def buffers(dim: int = DIM, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    return {name: torch.zeros(9, KV_HEADS, dim).to(dtype) for name in ("k_buffer", "v_buffer")}


def new(dim: int = DIM, tokens: int = TOKENS) -> dict[str, torch.Tensor]:
    return {"q": torch.zeros(tokens, HEADS, dim), "out": torch.full((tokens, HEADS, dim), POISON)}


def told(name: str, said: str, caplog: pytest.LogCaptureFixture) -> None:
    (note,) = patching.declare._outcomes[name].notes
    assert said in note
    assert [said in record.getMessage() for record in caplog.records] == [True], "one log line"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (buffers(dtype=FP8), "a quantised KV cache is not taken"),
        ({"q": torch.zeros(REQUESTS, HEADS, DIM, dtype=torch.float64)}, "q is torch.float64"),
        ({**buffers(48), **new(48, REQUESTS)}, "head dimensions 48 and 48: powers of two"),
        ({**buffers(1024), **new(1024, REQUESTS)}, "head dimensions 1024 and 1024: powers of two from 16 to 512"),
        ({"out": torch.full((REQUESTS, HEADS, 2 * DIM), POISON)[..., ::2]}, "out has shape"),
        ({"k_descale": 0.5}, "a KV cache with scales"),
        ({"v_descale": 0.5}, "a KV cache with scales"),
        ({"sinks": torch.zeros(HEADS)}, "attention sinks"),
        ({"xai_temperature_len": 64}, "a temperature by length"),
        ({"score_mod": object()}, "a changed score"),
        ({"has_mla": True}, "MLA"),
    ],
)
def test_decode(change: dict[str, Any], said: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    rest = {"kv_indptr": torch.tensor([0, 3, 9]), "kv_indices": torch.arange(9), "attn_logits": object(), "attn_lse": object()}
    scales = {"num_kv_splits": object(), "max_kv_splits": 8, "scale": 1.0, "k_descale": 1.0, "v_descale": 1.0}
    given = {**buffers(), **new(tokens=REQUESTS), **rest, **scales, **change, "another": object()}
    stock = Stock()
    layer = DecodeAttention(stock)
    for _ in range(2):
        layer(**given)
    assert layer.steps == 0
    for args, options in stock.given:
        assert [id(one) for one in args] == [id(given[name]) for name in DECODE]
        assert {name: options[name] for name in change if name in options} == {name: change[name] for name in change if name in options}
        assert options["another"] is given["another"]
    assert len(stock.given) == 2
    assert (given["out"] == POISON).all()
    told("decode_attention", said, caplog)


DECODE = (
    "q", "k_buffer", "v_buffer", "out", "kv_indptr", "kv_indices", "attn_logits", "attn_lse", "num_kv_splits", "max_kv_splits", "scale",
    "k_descale", "v_descale",
)  # fmt: skip


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"custom_mask": torch.ones(64, dtype=torch.uint8)}, "a mask of its own"),
        ({"is_causal": False}, "not causal"),
        ({"k_scale": 0.5}, "a KV cache with scales"),
        ({"v_scale": 0.5}, "a KV cache with scales"),
        ({"sm_scale": None}, "no scale of the scores"),
        ({"logit_cap": 30.0}, "logit_cap asked for"),
        ({"sinks": torch.zeros(HEADS)}, "sinks asked for"),
        ({"sinks": torch.zeros(1)}, "sinks asked for"),
        ({"xai_temperature_len": 64}, "xai_temperature_len asked for"),
        ({"score_mod": object(), "unified": True}, "score_mod, unified asked for"),
        (buffers(dtype=FP8), "a quantised KV cache is not taken"),
        ({"k": torch.zeros(TOKENS, KV_HEADS, DIM).half()}, "k is torch.float16"),
        (
            {**buffers(48), **new(48), "k": torch.zeros(TOKENS, KV_HEADS, 48), "v": torch.zeros(TOKENS, KV_HEADS, 48)},
            "head dimensions 48 and 48",
        ),
        ({"q": torch.zeros(TOKENS, 6, DIM)}, "6 query heads over 2 KV heads"),
    ],
)
def test_prefill(change: dict[str, Any], said: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    fresh = {name: torch.zeros(TOKENS, KV_HEADS, DIM) for name in ("k", "v")}
    rest = {"qo_indptr": torch.tensor([0, 3, 8]), "kv_indptr": torch.tensor([0, 4, 9]), "kv_indices": torch.arange(9)}
    mask = {"custom_mask": None, "is_causal": True, "mask_indptr": None, "max_len_extend": 5, "k_scale": 1.0, "v_scale": 1.0}
    default = {"logit_cap": 0.0, "sinks": None, "xai_temperature_len": -1, "score_mod": None}
    given: dict[str, Any] = {**buffers(), **new(), **fresh, **rest, **mask, "sm_scale": 1.0, **default, **change}
    stock = Stock()
    layer = PrefillAttention(stock)
    for _ in range(2):
        layer(**given)
    assert layer.steps == 0
    for args, options in stock.given:
        assert [id(one) for one in args] == [id(given[name]) for name in PREFILL]
        assert all(options[name] is given[name] for name in given if name not in PREFILL)
    assert len(stock.given) == 2
    assert (given["out"] == POISON).all()
    told("prefill_attention", said, caplog)


PREFILL = (
    "q", "k", "v", "out", "k_buffer", "v_buffer", "qo_indptr", "kv_indptr", "kv_indices", "custom_mask", "is_causal", "mask_indptr",
    "max_len_extend", "k_scale", "v_scale",
)  # fmt: skip


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"causal": False}, "not causal"),
        ({"k_descale": 0.5}, "a KV cache with scales"),
        ({"v_descale": 0.5}, "a KV cache with scales"),
        ({"sinks": torch.zeros(HEADS)}, "attention sinks"),
        ({"xai_temperature_len": 64}, "a temperature by length"),
        ({"kv_indptr": torch.tensor([0, 9])}, "1 rows of metadata for 2 requests of 4 tokens"),
        (buffers(dtype=FP8), "a quantised KV cache is not taken"),
        ({"k_new": torch.zeros(TOKENS, KV_HEADS, DIM).half()}, "k_new is torch.float16"),
        ({"queries": 3}, "8 query tokens are no multiple of 3"),
        ({"queries": 0}, "8 query tokens are no multiple of 0"),
        ({**buffers(48), **new(48), **{name: torch.zeros(TOKENS, KV_HEADS, 48) for name in ("k_new", "v_new")}}, "head dimensions 48"),
        ({"q": torch.zeros(TOKENS, 66, DIM)}, "4 query tokens of 33 heads are 132 rows; up to 128"),
    ],
)
def test_verify(change: dict[str, Any], said: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    fresh = {name: torch.zeros(TOKENS, KV_HEADS, DIM) for name in ("k_new", "v_new")}
    rest = {
        "kv_indptr": torch.tensor([0, 4, 9]),
        "kv_indices": torch.arange(9),
        "tree_mask": None,
        "causal": True,
        "tree_mask_indptr": None,
    }
    scales = {"queries": 4, "k_descale": 1.0, "v_descale": 1.0, "scale": 1.0, "logit_cap": 0.0, "sliding_window_size": -1}
    last = {"sinks": None, "window_kv_offsets": None, "xai_temperature_len": -1, "max_bs": REQUESTS, "qo_indptr": None}
    given: dict[str, Any] = {**buffers(), **new(), **fresh, **rest, **scales, **last, **change}
    layer = VerifyAttention(topk=1)
    assert [layer(**given) for _ in range(2)] == [False, False], "the backend goes on to its extend kernel"
    assert layer.steps == 0
    assert (given["out"] == POISON).all()
    told("verify_attention", said, caplog)
    # Where chains have no mask SGLang's kernel itself computes the layer: what is set before it takes prefills.
    calls: list[tuple[Any, ...]] = []
    layer.chain_kernel = lambda *tensors, **_: calls.append(tensors)
    assert layer(**given) is True
    assert calls[0][0] is given["q"]
    assert (calls[0][3] is given["out"], calls[0][9], calls[0][10], calls[0][12]) == (True, None, given["causal"], given["queries"])
    assert layer(**{**given, "tree_mask": torch.ones(1)}) is False, "with a mask as ever"


@pytest.mark.parametrize(
    ("drive", "rows"),
    [(test_decode, "1 query tokens of 2 heads"), (test_prefill, "2 query heads a KV head"), (test_verify, "4 query tokens of 2 heads")],
)
def test_a_card_without_room(drive: Any, rows: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "card", lambda device: Card(4096, holds=False))
    drive({}, f"no tile for {rows} of 32 in torch.float32 fits the 4,096 bytes of shared memory that a program may have", caplog)
