"""Hooks that refuse assistants, draft lengths, backends and checkpoints that do not fit, before weights are loaded."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sglang_gemma4.patching import switches

POOL_SIZES = "SGLANG_GEMMA4_POOL_SIZES"


VIEWS = "SGLANG_GEMMA4_FROZEN_VIEWS"


ATTENTION = "SGLANG_GEMMA4_ATTENTION"


FIXES = "SGLANG_GEMMA4_MODEL_FIXES"


FEW_ROWS = "SGLANG_GEMMA4_FEW_ROW_LINEAR"


COMMAND_LINES = ("sglang.launch_server", "sglang.cli.main", "sglang.cli.__main__")


def is_command_line() -> bool:
    """Whether this process is SGLang's own command: ``python -m sglang.launch_server`` or ``sglang serve``."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return getattr(spec, "name", None) in COMMAND_LINES or Path(sys.argv[0]).name == "sglang"


def check_arguments(original: Callable[..., None], server_args: Any) -> None:
    """Around the resolution of a ``ServerArgs``: check what was typed before it, and the pool sizes after it.

    A command line ends with a one-line message; an Engine call raises ``PreflightError``.
    """
    from sglang_gemma4.diagnostics import preflight, quantised_limits

    if getattr(server_args, "_resolution_finished", False):  # in a child process: checked by its parent
        return original(server_args)
    with one_line():
        given = {name: getattr(server_args, name, None) for name in preflight.FIELDS}
        preflight.check(given, cpu_engine=switches.is_on(switches.CPU_ENGINE))
        quantised_limits.refuse_gguf(str(getattr(server_args, "model_path", "")))
    original(server_args)
    with one_line():
        check_pools(server_args)
    return None


def check_pools(server_args: Any) -> None:
    """Check that a pool whose size was typed holds one request.

    Raises:
        PreflightError: it does not.
    """
    from sglang.srt.arg_groups.model_override_base import model_config_of, resolved_view
    from sglang.srt.environ import envs

    from sglang_gemma4.diagnostics import pool_limits, preflight
    from sglang_gemma4.models import config_files

    if not switches.part_is_on("pool_checks", switches.PREFLIGHT):
        return
    if server_args.max_total_tokens is None or str(server_args.model_path).lower() in ("none", "dummy"):
        return
    model = model_config_of(server_args)
    if not any(name in config_files.ARCHITECTURES for name in model.hf_config.architectures or ()):
        return
    resolved = resolved_view(server_args)
    preflight.refuse(
        pool_limits.problems(
            server_args.max_total_tokens,
            server_args.swa_full_tokens_ratio,
            {name: getattr(resolved, name) for name in pool_limits.FIELDS},
            int(model.hf_text_config.sliding_window),
            int(model.context_len),
            interval=envs.SGLANG_SWA_EVICTION_INTERVAL.get(),
            sized=switches.part_is_on("swa_sizing", POOL_SIZES),
        )
    )


def check_mtp(_result: None, server_args: Any) -> None:
    """After ``_handle_frozen_kv_mtp``: check MTP, whose backends, lengths and dtypes are resolved by then."""
    from sglang.srt.arg_groups.model_override_base import attention_backends_of, resolved_view

    from sglang_gemma4.diagnostics import mtp_limits

    resolved = resolved_view(server_args)
    prefill, decode = attention_backends_of(resolved)
    fields = {name: getattr(resolved, name) for name in mtp_limits.FIELDS}
    with one_line():
        mtp_limits.check(
            fields | {"prefill_backend": prefill, "decode_backend": decode},
            views=switches.part_is_on("frozen_views", VIEWS),
            cpu_engine=switches.is_on(switches.CPU_ENGINE),
        )


def check_cache(_result: None, server_args: Any) -> None:
    """After ``handle_model_specific_adjustments``, when the backends are resolved: check the KV cache's type."""
    from sglang.srt.arg_groups.model_override_base import attention_backends_of, model_config_of, resolved_view

    from sglang_gemma4.diagnostics import preflight
    from sglang_gemma4.models import config_files

    resolved, config = resolved_view(server_args), model_config_of(server_args).hf_config
    if not any(name in config_files.ARCHITECTURES for name in config.architectures or ()):
        return
    prefill, decode = attention_backends_of(resolved)
    verifies = resolved.speculative_algorithm is not None and resolved.speculative_attention_mode == "decode"
    shared = getattr(getattr(config, "text_config", config), "num_kv_shared_layers", 0) or 0
    read_by_us = switches.part_is_on("kv_formats", ATTENTION) and not resolved.enable_deterministic_inference
    with one_line():
        preflight.check_cache_type(shared, resolved.kv_cache_dtype, (prefill, decode) if verifies else (prefill,), read_by_us)


def check_weights(_result: None, server_args: Any) -> None:
    """At the same point, when the model's config has been read: check the weight format."""
    import torch
    from sglang.srt.arg_groups.model_override_base import model_config_of, resolved_view

    from sglang_gemma4.diagnostics import quantised_limits
    from sglang_gemma4.models import config_files

    resolved, model = resolved_view(server_args), model_config_of(server_args)
    config = model.hf_config
    if not any(name in config_files.ARCHITECTURES for name in config.architectures or ()):
        return
    capability = torch.cuda.get_device_capability() if torch.cuda.is_available() and torch.version.cuda else None
    kept = model.dtype == torch.bfloat16 and switches.part_is_on("four_bit_linear", FEW_ROWS) and switches.four_bit_rows(capability) > 0
    given = config.to_dict()
    if not given.get("quantization_config") and not resolved.quantization and model.quantization:
        given["quantization_config"] = {"quant_method": model.quantization}  # from a hf_quant_config.json, which SGLang reads
    with one_line():
        quantised_limits.check(
            given,
            {name: getattr(resolved, name) for name in quantised_limits.FIELDS},
            capability=capability,
            cpu_engine=switches.is_on(switches.CPU_ENGINE),
            gelu_experts=switches.part_is_on("quantised_experts", FIXES),
            keeps_four_bits=kept,
        )


def check_media(_result: None, server_args: Any) -> None:
    """At the same point: check what --mm-process-config says of images and videos."""
    from sglang.srt.arg_groups.model_override_base import model_config_of, resolved_view

    from sglang_gemma4.diagnostics import preflight
    from sglang_gemma4.models import config_files
    from sglang_gemma4.serving.media import image_budget

    architectures = model_config_of(server_args).hf_config.architectures or ()
    if not any(name in config_files.ARCHITECTURES for name in architectures):
        return
    if reason := image_budget.reason_against(resolved_view(server_args).mm_process_config):
        with one_line():
            preflight.refuse([reason])


def check_model(_result: None, server_args: Any) -> None:
    """After ``handle_model_specific_adjustments``: run the three checks above."""
    check_cache(None, server_args)
    check_weights(None, server_args)
    check_media(None, server_args)


@contextmanager
def one_line() -> Iterator[None]:
    """Inside this context a ``PreflightError`` ends a command line with only its message."""
    from sglang_gemma4.models.config_files import PreflightError

    try:
        yield
    except PreflightError as error:
        if is_command_line():
            raise SystemExit(f"sglang-gemma4: {error}") from None
        raise
