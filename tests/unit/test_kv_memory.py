"""Which layers get buffers, the ratio, and pools that are too small: without an engine."""

from types import SimpleNamespace

import msgspec
import pytest
import torch

from sglang_gemma4.memory import kv_layers, pool_checks, swa_ratio


class Attention(torch.nn.Module):
    """Stands for SGLang's ``RadixAttention``: it knows which layer's KV it reads."""

    def __init__(self, layer_id: int) -> None:
        super().__init__()
        self.layer_id = layer_id


class Info(msgspec.Struct, frozen=True, kw_only=True):
    start_layer: int = 0
    end_layer: int = 6
    swa_attention_layer_ids: list[int] | None = None
    full_attention_layer_ids: list[int] | None = None


def model(*reads: int) -> torch.nn.Module:
    return torch.nn.ModuleList([Attention(layer) for layer in reads])


def test_only_layers_that_are_read_keep_buffers() -> None:
    info = Info(swa_attention_layer_ids=[0, 1, 3, 4], full_attention_layer_ids=[2, 5])
    shared = kv_layers.without_unread(info, model(0, 1, 2, 1, 1, 2), Attention)
    assert (shared.swa_attention_layer_ids, shared.full_attention_layer_ids) == ([0, 1], [2])
    assert (shared.start_layer, shared.end_layer) == (0, 6)
    assert kv_layers.without_unread(info, model(*range(6)), Attention) is info
    assert kv_layers.without_unread(Info(), model(0), Attention).swa_attention_layer_ids is None


def test_the_ratio_of_a_moe_a_dense_model_and_an_operator() -> None:
    moe, dense = SimpleNamespace(num_experts=128, sliding_window=1024), SimpleNamespace(num_experts=None, sliding_window=1024)
    assert swa_ratio.choose(moe, None).ratio == swa_ratio.MOE_RATIO
    assert swa_ratio.choose(dense, None).ratio is None
    assert swa_ratio.choose(moe, 0.8) == swa_ratio.Choice(None, "--swa-full-tokens-ratio 0.8 stands as given")
    small = swa_ratio.choose(moe, None, 300_000, 1)
    assert small.ratio is None
    assert "0.15 of --max-total-tokens 300000 is below 57392" in small.why
    assert swa_ratio.choose(moe, None, 1_000_000, 1).ratio == swa_ratio.MOE_RATIO
    assert swa_ratio.choose(moe, None, chunked_prefill_size=8192).ratio == swa_ratio.MOE_RATIO
    unchunked = swa_ratio.choose(moe, None, chunked_prefill_size=-1)
    assert unchunked.ratio is None
    assert "prefill is not chunked" in unchunked.why


def test_a_pool_shorter_than_the_context() -> None:
    assert pool_checks.check(5000, 5000, 5000, None) is None
    with pytest.raises(pool_checks.PoolTooSmallError, match=r"--context-length 6000: .* holds 5000; raise --mem-fraction-static, or lower"):
        pool_checks.check(5000, 6000, 6000, None)
    assert "raise --max-total-tokens 5000" in str(pool_checks.check(5000, 6000, None, 5000))


def test_a_sliding_pool_shorter_than_a_request() -> None:
    assert pool_checks.check_sliding(2200, 50_000, 2177, 0.04) is None
    assert pool_checks.check_sliding(100, 100, 2177, 1.0) is None, "no request is longer than the full pool"
    with pytest.raises(
        pool_checks.PoolTooSmallError, match=r"ratio 0.02: .* 1000 tokens, a running request takes up to 2177.* 0.0436 or more"
    ):
        pool_checks.check_sliding(1000, 50_000, 2177, 0.02)
    assert "1000 tokens" in str(pool_checks.check_sliding(1000, 50_000, 2177, None))
