"""Which KV scales of an attention layer are left out: SGLang's placeholders of 1, not a checkpoint's, and none of an fp8 cache."""

from types import SimpleNamespace

import pytest
import torch
from sglang.srt.layers.quantization.fp8 import Fp8Config
from sglang.srt.layers.radix_attention import RadixAttention

from sglang_gemma4.models import loading
from sglang_gemma4.speculative import views


def attention(scale: float) -> RadixAttention:
    """As loaded; a scale below zero is none in the checkpoint."""
    layer = RadixAttention(4, 32, 1.0, 2, 0, quant_config=Fp8Config())
    for own in (layer.k_scale, layer.v_scale):
        own.data.fill_(scale)
    layer.quant_method.process_weights_after_loading(layer)
    return layer


@pytest.mark.parametrize(
    ("scale", "cache", "architecture", "stays"),
    [
        (-1.0, "auto", "Gemma4ForConditionalGeneration", False),
        (-1.0, "int8_per_token_head", "Gemma4AssistantForCausalLM", False),
        (-1.0, "fp8_e4m3", "Gemma4ForConditionalGeneration", True),
        (0.5, "auto", "Gemma4ForConditionalGeneration", True),
        (-1.0, "auto", "LlamaForCausalLM", True),
    ],
)
def test_what_is_left_out(scale: float, cache: str, architecture: str, stays: bool) -> None:
    layer = attention(scale)
    config = SimpleNamespace(hf_config=SimpleNamespace(architectures=[architecture]))
    runner = SimpleNamespace(model=torch.nn.ModuleList([layer]), model_config=config, server_args=SimpleNamespace(kv_cache_dtype=cache))
    loading.leave_out(None, runner)
    if stays:
        assert float(layer.k_scale) == layer.k_scale_float == layer.v_scale_float == abs(scale)
        return
    assert layer.k_scale is layer.v_scale is layer.k_scale_float is layer.v_scale_float is layer.quant_method is None
    assert not list(layer.parameters())
    target = attention(0.5)
    views.share_kv_scales(target, layer)
    assert torch.equal(layer.k_scale, target.k_scale.data)
    assert layer.v_scale_float == 0.5, "an assistant's layer reads what a target's wrote"
