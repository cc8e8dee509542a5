"""Hooks for checkpoints: their configurations, layouts and weights, as they are loaded and updated."""

from collections.abc import Callable
from typing import Any

from sglang_gemma4.patching import decline, idle, switches


def keep_prefill_eager(_result: None, server_args: Any) -> None:
    """After ``disable_breakable_cudagraph_if_incompatible``: keep text-only prefills eager where graphs are off."""
    from sglang_gemma4.models.schedule.prefill_backend import keep_text_eager

    keep_text_eager(server_args)


def filled() -> Any:
    """Replaces SGLang's alias of ``Gemma4Config`` with ``UnifiedConfig``, which fills in a 12B's defaults."""
    from sglang_gemma4.models.unified_config import UnifiedConfig

    return UnifiedConfig


SWITCH = "SGLANG_GEMMA4_CONFIGS"


def translate(model_config: Any) -> None:
    """Before ``_config_draft_model``: translate GPTQ's and AWQ's layouts, before SGLang reads the quantisation."""
    from sglang_gemma4.models import gptq_layout

    gptq_layout.translate(model_config, is_read=switches.part_is_on("quantised_names", SWITCH))


FP8_CACHES = ("fp8_e4m3", "fp8_e5m2")
"""SGLang's fp8 caches, which have a scale for each layer."""


def leave_out(_result: None, runner: Any, *_args: Any, **_kwargs: Any) -> None:
    """After ``ModelRunner.load_model``: remove attention's KV scales where they are SGLang's placeholders of 1.

    An fp8 cache keeps them, because a later update of weights may bring scales.
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


def score_my_range(
    original: Callable[..., Any], processor: Any, hidden_states: Any, lm_head: Any, embedding_bias: Any = None, *, out: Any = None
) -> Any:
    """Around ``_compute_lm_head``: each rank scores its range of a replicated head, if logits are gathered later."""
    if processor.do_tensor_parallel_all_gather:
        from sglang_gemma4.models.layers import sharded_head

        if sharded_head.is_replicated(lm_head):
            reason = sharded_head.reason_against(processor, lm_head)
            if reason:
                decline("sharded_head", reason)
            else:
                lm_head = sharded_head.part_of(lm_head)
    return original(processor, hidden_states, lm_head, embedding_bias, out=out)


ARCHITECTURES = ("Gemma4ForConditionalGeneration", "Gemma4UnifiedForConditionalGeneration")


def admit(server_args: Any) -> None:
    """Before ``handle_language_model_only``: add Gemma 4 to the list of architectures that it accepts."""
    known = type(server_args)
    known.LANGUAGE_MODEL_ONLY_ARCHITECTURES = tuple(dict.fromkeys((*known.LANGUAGE_MODEL_ONLY_ARCHITECTURES, *ARCHITECTURES)))


def language_model_only_keep_prefill_eager(_result: None, server_args: Any) -> None:
    """After ``disable_breakable_cudagraph_if_incompatible``: as ``text_only_config`` does for its checkpoints."""
    from sglang_gemma4.models.schedule.prefill_backend import keep_text_eager

    keep_text_eager(server_args)


def fill_gemma4(original: Callable[..., None], model: Any, low: float = -1e-3, high: float = 1e-3, seed: int = 1234) -> None:
    """Fill Gemma 4 models and assistants with spread weights; leave every other model to SGLang."""
    if not type(model).__name__.startswith("Gemma4"):
        original(model, low, high, seed)
        return
    from sglang_gemma4.tiny.shared_weights import current
    from sglang_gemma4.tiny.spread_weights import fill

    sharing = current()
    fill(model, seed, leave=sharing.attach(model) if sharing else set())
    if sharing:
        sharing.share(model)


def load_shared(original: Callable[..., Any], loader: Any, *, model_config: Any, device_config: Any) -> Any:
    """Load a model for a benchmark whose arms share one copy of the weights, of which this process uses its part."""
    from sglang.srt.runtime_context import get_parallel

    from sglang_gemma4.tiny.shared_weights import check_format, loading

    (architecture,) = model_config.hf_config.architectures
    if not architecture.startswith("Gemma4"):
        return original(loader, model_config=model_config, device_config=device_config)
    check_format(model_config.quantization, getattr(model_config.hf_config, "quantization_config", None))
    with loading(f"{architecture}-{get_parallel().tp_rank}-of-{get_parallel().tp_size}"):
        return original(loader, model_config=model_config, device_config=device_config)
