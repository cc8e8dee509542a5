"""Under --quantization fp8 keys and values of a cache without scales are written and read as without it."""

from typing import Any

from sglang_gemma4.patching import Hook, Patch, idle, uses

FP8_CACHES = ("fp8_e4m3", "fp8_e5m2")
"""SGLang's, with a scale for each layer."""


def leave_out(_result: None, runner: Any, *_args: Any, **_kwargs: Any) -> None:
    """After ``ModelRunner.load_model``: attention whose KV scales are SGLang's placeholders of 1 has none.

    Not over an fp8 cache, which a later update of weights may bring scales for.
    """
    from sglang.srt.layers.quantization.kv_cache import BaseKVCacheMethod
    from sglang.srt.layers.radix_attention import RadixAttention

    from sglang_gemma4.models.config_files import named_gemma4

    if not named_gemma4(runner.model_config.hf_config):
        return
    if runner.server_args.kv_cache_dtype in FP8_CACHES:
        idle("unit_kv_scales", f"--kv-cache-dtype {runner.server_args.kv_cache_dtype} has use for scales")
        return
    for layer in runner.model.modules():
        if not isinstance(layer, RadixAttention) or not isinstance(layer.quant_method, BaseKVCacheMethod):
            continue
        if layer.k_scale_float == layer.v_scale_float == 1.0:
            for name in ("k_scale", "v_scale"):
                delattr(layer, name)  # a parameter; an assistant's may become a tensor of the target's
                setattr(layer, name, None)
                setattr(layer, f"{name}_float", None)
            layer.quant_method = None  # it would look for parameters when weights are updated


PATCH = Patch(
    switch="SGLANG_GEMMA4_QKV",
    why="SGLang's fp8 gives each attention a KV scale of 1: keys and values are cloned before they are written, and the launches of this "
    "package that write them themselves, or for two kinds of rows at once, step aside.",
    evidence="srt/layers/quantization/kv_cache.py:59 · srt/layers/attention/triton_backend.py:1721-1742 · "
    "tests/engine/test_unit_kv_scales.py (what stepped aside)",
    remove_when="SGLang leaves k_scale None where a checkpoint has none.",
    uses=(uses.quantised,),
    hooks=(Hook("sglang.srt.model_executor.model_runner.ModelRunner.load_model", "after", leave_out, "655a134e49f2"),),
)
