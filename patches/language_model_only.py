"""--language-model-only leaves the vision and audio towers out; their memory goes to the KV pools."""

from typing import Any

from sglang_gemma4.patching import Hook, Patch, uses

CHAT = "sglang.srt.entrypoints.openai.serving_chat.OpenAIServingChat"
MODULE = "sglang.srt.arg_groups.cuda_graph_hook"
ARCHITECTURE, UNIFIED = "Gemma4ForConditionalGeneration", "Gemma4UnifiedForConditionalGeneration"
MODELS, OURS = "sglang.srt.models", "sglang_gemma4.models.towers"


def admit(server_args: Any) -> None:
    """Before ``handle_language_model_only``, which refuses what is not on its class's list."""
    known = type(server_args)
    known.LANGUAGE_MODEL_ONLY_ARCHITECTURES = tuple(dict.fromkeys((*known.LANGUAGE_MODEL_ONLY_ARCHITECTURES, ARCHITECTURE, UNIFIED)))


def keep_prefill_eager(_result: None, server_args: Any) -> None:
    """After ``disable_breakable_cudagraph_if_incompatible``; ``text_only_config`` does the same for its checkpoints."""
    from sglang_gemma4.models.schedule.prefill_backend import keep_text_eager

    keep_text_eager(server_args)


PATCH = Patch(
    switch="SGLANG_GEMMA4_MEDIA_FIXES",
    why="Stock refuses --language-model-only for Gemma 4, so a server of text alone keeps the towers in memory.",
    evidence="srt/server_args.py:335 (the list) · srt/models/gemma4_mm.py:199 (built on every first rank)",
    remove_when="Gemma4ForConditionalGeneration is on SGLang's list.",
    uses=(uses.no_towers,),
    hooks=(
        Hook("sglang.srt.arg_groups.model_hook.handle_language_model_only", "before", admit, "b1900fe60535"),
        Hook(f"{MODULE}.disable_breakable_cudagraph_if_incompatible", "after", keep_prefill_eager, "4c3fef3ba8a0"),
        Hook(f"{MODELS}.gemma4_vision.Gemma4VisionEncoder.__init__", "around", f"{OURS}:leave_out", "e5ff87d79ee5"),
        Hook(f"{MODELS}.gemma4_audio.Gemma4AudioEncoder.__init__", "around", f"{OURS}:leave_out", "469e1c4dd179"),
        Hook(f"{MODELS}.gemma4_mm.Gemma4MultimodalEmbedder.__init__", "around", f"{OURS}:leave_out", "995aed4687c7"),
        Hook(f"{MODELS}.gemma4_unified.Gemma4UnifiedVisionEmbedder.__init__", "around", f"{OURS}:leave_out", "0098362f62aa"),
        Hook(f"{MODELS}.gemma4_unified.Gemma4UnifiedMultimodalEmbedder.__init__", "around", f"{OURS}:leave_out", "3694555345fc"),
        Hook(f"{MODELS}.gemma4_unified.{UNIFIED}.load_weights", "before", f"{OURS}:skip_towers", "1e2831320c81"),
        Hook(f"{MODELS}.gemma4_mm.{ARCHITECTURE}.load_weights", "before", f"{OURS}:skip_towers", "3c1f7137a36c"),
        Hook(f"{CHAT}._validate_media_content", "after", f"{OURS}:name_the_flag", "92d5d0cb566a"),
    ),
)
