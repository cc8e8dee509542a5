"""A checkpoint whose tensors do not all arrive is refused; text-only and older names are read as the model's."""

from typing import Any

from sglang_gemma4.patching import Hook, Patch

OURS = "sglang_gemma4.models.checkpoint_arrival"
MODELS = "sglang.srt.models"
RUNNER = "sglang.srt.model_executor.model_runner.ModelRunner"


def check_model(_result: None, server_args: Any) -> None:
    """After ``handle_model_specific_adjustments``, when the model's config is read."""
    from sglang.srt.arg_groups.model_override_base import model_config_of, resolved_view

    from sglang_gemma4.models import checkpoint_arrival, config_files
    from sglang_gemma4.patches.preflight import one_line

    resolved, model = resolved_view(server_args), model_config_of(server_args)
    named = any(name in config_files.ARCHITECTURES for name in model.hf_config.architectures or ())
    if not named or resolved.encoder_only or str(resolved.load_format) not in checkpoint_arrival.READ_BY_HEADERS:
        return
    towers = not (resolved.language_model_only or resolved.language_only)
    with one_line():
        checkpoint_arrival.check_files(str(model.model_path), model.hf_config.to_dict(), towers, resolved.revision, resolved.download_dir)


def check_assistant(_result: None, server_args: Any) -> None:
    """After ``_handle_frozen_kv_mtp``: the draft is an assistant."""
    from sglang.srt.arg_groups.model_override_base import resolved_view

    from sglang_gemma4.models import checkpoint_arrival, config_files
    from sglang_gemma4.patches.preflight import one_line

    resolved = resolved_view(server_args)
    path, revision = str(resolved.speculative_draft_model_path), resolved.speculative_draft_model_revision
    form = resolved.speculative_draft_load_format or resolved.load_format
    with one_line():
        config = config_files.read_config(path, "assistant", revision, resolved.download_dir)
        if config is not None and config_files.is_assistant(config) and str(form) in checkpoint_arrival.READ_BY_HEADERS:
            checkpoint_arrival.check_files(path, config, False, revision, resolved.download_dir)


PATCH = Patch(
    switch="SGLANG_GEMMA4_CONFIGS",
    why="Stock passes over tensors that it cannot name, and counts q, k and v, gate and up or all experts as loaded when any of them came: "
    "text-only or older names beside a multimodal config, an adapter's, a missing file or layer are served as garbage, with status 200.",
    evidence="srt/models/gemma4_mm.py:1044-1110 · gemma4_causal.py:1409 · crash_repro/partial_checkpoints.py",
    remove_when="SGLang ends where a parameter of Gemma 4, or a part of a fused one, got no tensor.",
    hooks=(
        Hook("sglang.srt.arg_groups.model_hook.handle_model_specific_adjustments", "after", check_model, "1c321ef6fec8"),
        Hook("sglang.srt.arg_groups.speculative_hook._handle_frozen_kv_mtp", "after", check_assistant, "7b0aa090be25"),
        Hook(
            "sglang.srt.model_loader.loader.DefaultModelLoader._get_weights_iterator", "after", f"{OURS}:check_downloaded", "5fb97f347bd3"
        ),
        Hook(f"{RUNNER}.load_model", "around", f"{OURS}:at_start", "655a134e49f2"),
        Hook(f"{RUNNER}.finalize_startup_weight_load", "around", f"{OURS}:at_start", "df514f9821c4"),
        Hook(f"{MODELS}.gemma4_mm.Gemma4ForConditionalGeneration.load_weights", "around", f"{OURS}:load", "3c1f7137a36c"),
        Hook(f"{MODELS}.gemma4_unified.Gemma4UnifiedForConditionalGeneration.load_weights", "around", f"{OURS}:load", "1e2831320c81"),
        Hook(f"{MODELS}.gemma4_causal.Gemma4ForCausalLM.load_weights", "around", f"{OURS}:load", "0fc7fdc87d32"),
    ),
)
