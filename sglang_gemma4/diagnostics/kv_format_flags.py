"""Checks for --kv-cache-dtype int8_per_token_head and fp8_per_token_head once SGLang has resolved its arguments."""

from typing import Any

from sglang_gemma4.models import attention_backends
from sglang_gemma4.models.config_files import named_gemma4
from sglang_gemma4.patching import switches


def check(_result: None, server_args: Any) -> None:
    """After ``handle_model_specific_adjustments``, when the backends are resolved: refuse by name what a format does not work with.

    A decode server then keeps retracted requests in host tensors, which hold scales. SGLang's default, a host pool,
    does not.
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
            fields | {"prefill_backend": prefill, "decode_backend": decode, "speculative_algorithm": _algorithm(resolved)},
            gemma4=named_gemma4(config),
            cpu_engine=switches.is_on(switches.CPU_ENGINE),
            capability=torch.cuda.get_device_capability() if torch.cuda.is_available() else None,
            hnd=bool(envs.SGLANG_USE_HND_KVCACHE.get()),
            unmasked=attention_backends.unmasked(config),
        )
    if resolved.disaggregation_mode != "null" and resolved.disaggregation_decode_retraction_backup is None:
        declare_resolution(server_args, "sglang_gemma4.kv_formats", disaggregation_decode_retraction_backup="cpu_tensor")


def _algorithm(resolved: Any) -> str | None:
    """The algorithm that SGLang will make of what was typed, which it does in a later step."""
    from sglang.srt.arg_groups.speculative_hook import _resolve_speculative_algorithm_alias

    if resolved.speculative_algorithm is None:
        return None
    found: str | None = _resolve_speculative_algorithm_alias(
        resolved.speculative_algorithm.upper(), resolved.speculative_draft_model_path, resolved.trust_remote_code
    )
    return found
