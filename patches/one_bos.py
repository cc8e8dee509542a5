"""Raw texts of /v1/completions and /generate begin with one <bos>; chats and token ids are left as they are."""

from typing import Any

from sglang_gemma4.patching import Hook, Patch, note

MANAGER = "sglang.srt.managers.tokenizer_manager.TokenizerManager"
CHAT = "sglang.srt.entrypoints.openai.serving_chat.OpenAIServingChat"


def begin_texts(_result: None, manager: Any) -> None:
    """After ``TokenizerManager.init_tokenizer_and_processor``."""
    config = getattr(manager.model_config, "hf_config", None)
    if manager.tokenizer is None or not str(getattr(config, "model_type", "")).startswith("gemma4"):
        return
    from sglang_gemma4.serving import one_bos

    reason = one_bos.begin_texts(manager.tokenizer)
    if reason is not None:
        note("one_bos", reason)


def reuse_ids(found: bool, server: Any, processed: Any, is_multimodal: bool) -> bool:
    """After ``OpenAIServingChat._can_reuse_text_only_prompt_ids``."""
    from sglang_gemma4.serving import one_bos

    return found or (server.is_gemma4 and one_bos.reuses_ids(server, processed, is_multimodal))


PATCH = Patch(
    switch="SGLANG_GEMMA4_CONFIGS",
    why="Released Gemma 4 tokenizers add no <bos>. Stock restores it for text-only models, not for tokenizers that come with a processor: "
    "raw texts are scored without it. A tokenizer that adds it gives a chat's text, which is rendered and read again, two.",
    evidence="srt/utils/hf_transformers/tokenizer.py:317-423 (get_tokenizer only) · processor.py:398-432 · "
    "managers/tokenizer_manager.py:1068 · crash_repro/raw_bos.py",
    remove_when="SGLang's get_processor restores add_bos_token, and texts that begin with <bos> get no second one.",
    hooks=(
        Hook(f"{MANAGER}.init_tokenizer_and_processor", "after", begin_texts, "67e8365eb770"),
        Hook(f"{CHAT}._can_reuse_text_only_prompt_ids", "after", reuse_ids, "a4b57b078709"),
    ),
)
