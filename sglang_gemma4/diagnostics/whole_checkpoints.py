"""Hooks that refuse checkpoints whose tensors do not all arrive; text-only and older names are mapped to the model's."""

from typing import Any


def check_model(_result: None, server_args: Any) -> None:
    """After ``handle_model_specific_adjustments``, when the model's config has been read."""
    from sglang.srt.arg_groups.model_override_base import model_config_of, resolved_view

    from sglang_gemma4.diagnostics.start_checks import one_line
    from sglang_gemma4.models import checkpoint_arrival, config_files

    resolved, model = resolved_view(server_args), model_config_of(server_args)
    named = any(name in config_files.ARCHITECTURES for name in model.hf_config.architectures or ())
    if not named or resolved.encoder_only or str(resolved.load_format) not in checkpoint_arrival.READ_BY_HEADERS:
        return
    towers = not (resolved.language_model_only or resolved.language_only)
    with one_line():
        checkpoint_arrival.check_files(str(model.model_path), model.hf_config.to_dict(), towers, resolved.revision, resolved.download_dir)


def check_assistant(_result: None, server_args: Any) -> None:
    """After ``_handle_frozen_kv_mtp``: check the draft, which is an assistant."""
    from sglang.srt.arg_groups.model_override_base import resolved_view

    from sglang_gemma4.diagnostics.start_checks import one_line
    from sglang_gemma4.models import checkpoint_arrival, config_files

    resolved = resolved_view(server_args)
    path, revision = str(resolved.speculative_draft_model_path), resolved.speculative_draft_model_revision
    form = resolved.speculative_draft_load_format or resolved.load_format
    with one_line():
        config = config_files.read_config(path, "assistant", revision, resolved.download_dir)
        if config is not None and config_files.is_assistant(config) and str(form) in checkpoint_arrival.READ_BY_HEADERS:
            checkpoint_arrival.check_files(path, config, False, revision, resolved.download_dir)
