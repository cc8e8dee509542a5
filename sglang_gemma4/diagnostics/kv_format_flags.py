"""--kv-cache-dtype int8_per_token_head and fp8_per_token_head; an fp8 cache works on triton where layers share KV."""

from typing import Any

from sglang_gemma4.models.config_files import named_gemma4
from sglang_gemma4.patching import decline, switches

PLAIN = ("fp8_e4m3", "fp8_e5m2")


def check(_result: None, server_args: Any) -> None:
    """After ``handle_model_specific_adjustments``, when the backends are resolved: what does not run with a format is refused by name.

    A decode server keeps what it retracts in tensors on the host, which take scales; SGLang's choice, a host pool, does not.
    """
    from sglang.srt.arg_groups.model_override_base import attention_backends_of, model_config_of, resolved_view
    from sglang.srt.arg_groups.overrides import declare_resolution

    from sglang_gemma4.kernels.kv_cache import formats

    resolved = resolved_view(server_args)
    if formats.named(resolved.kv_cache_dtype) is None:
        return
    import torch
    from sglang.srt.environ import envs

    from sglang_gemma4.diagnostics import kv_format_limits
    from sglang_gemma4.diagnostics.start_checks import one_line

    config = model_config_of(server_args).hf_config
    prefill, decode = attention_backends_of(resolved)
    fields = {name: getattr(resolved, name, None) for name in kv_format_limits.FIELDS}
    with one_line():
        kv_format_limits.check(
            fields | {"prefill_backend": prefill, "decode_backend": decode},
            gemma4=named_gemma4(config),
            cpu_engine=switches.is_on(switches.CPU_ENGINE),
            capability=torch.cuda.get_device_capability() if torch.cuda.is_available() else None,
            hnd=bool(envs.SGLANG_USE_HND_KVCACHE.get()),
            unmasked=unmasked(config),
        )
    if resolved.disaggregation_mode != "null" and resolved.disaggregation_decode_retraction_backup is None:
        declare_resolution(server_args, "sglang_gemma4.kv_formats", disaggregation_decode_retraction_backup="cpu_tensor")


def unmasked(config: Any) -> bool:
    """Whether images attend both ways in this model, and SGLang's masks, which only its own kernels take, would say so."""
    from sglang_gemma4.attention import image_spans

    return image_spans.bidirectional(config) and not switches.part_is_on("image_masks", "SGLANG_GEMMA4_MEDIA_FIXES")


def shares_kv(config: Any) -> bool:
    """Whether layers of this model read another layer's KV; stock's prefill does not compile there over an fp8 cache."""
    text = getattr(config, "text_config", config)
    return bool(getattr(text, "num_kv_shared_layers", 0))


def read_levels(_result: None, backend: Any, runner: Any, *_args: Any, **_kwargs: Any) -> None:
    """After ``TritonAttnBackend.__init__``: the backend of a Gemma 4 target or its assistant, over a quantised cache."""
    if not readable(backend, runner):
        return
    config = runner.model_config.hf_config
    if runner.kv_cache_dtype_str in PLAIN and (runner.is_draft_worker or not shares_kv(config)):
        if not runner.is_draft_worker and "fp8_cache" not in switches.names_asked_for():
            decline(
                "kv_formats", "SGLang's kernels read an fp8 cache where no layers share KV; SGLANG_GEMMA4_WITH=fp8_cache has this package's"
            )
        return
    if runner.kv_cache_dtype_str in PLAIN and unmasked(config):
        decline(
            "kv_formats", "images attend both ways in this model, and the patch image_masks is off: SGLang's kernels read the fp8 cache"
        )
        return
    take(backend)


def readable(backend: Any, runner: Any) -> bool:
    """Whether the cache is quantised, and this a backend that could read it by levels: of a Gemma 4 target or its assistant."""
    from sglang_gemma4.kernels.kv_cache import formats

    quantised = formats.named(runner.kv_cache_dtype_str) is not None or runner.kv_cache_dtype_str in PLAIN
    return quantised and named_gemma4(runner.model_config.hf_config) and backend.dcp_size <= 1 and not backend.enable_deterministic


def take(backend: Any) -> None:
    """Have the backend read levels."""
    from sglang_gemma4.attention.quantised import READERS

    backend.__class__ = READERS.get(type(backend), type(backend))
