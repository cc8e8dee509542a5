"""Hooks that give every prompt exactly one BOS token."""

from typing import Any

from sglang_gemma4.patching import note


def begin_texts(_result: None, manager: Any) -> None:
    """After ``TokenizerManager.init_tokenizer_and_processor``: make a Gemma 4 tokenizer begin texts with BOS."""
    config = getattr(manager.model_config, "hf_config", None)
    if manager.tokenizer is None or not str(getattr(config, "model_type", "")).startswith("gemma4"):
        return
    from sglang_gemma4.serving import one_bos

    reason = one_bos.begin_texts(manager.tokenizer)
    if reason is not None:
        note("one_bos", reason)


def reuse_ids(found: bool, server: Any, processed: Any, is_multimodal: bool) -> bool:
    """After ``OpenAIServingChat._can_reuse_text_only_prompt_ids``: also reuse ids where ``one_bos`` can."""
    from sglang_gemma4.serving import one_bos

    return found or (server.is_gemma4 and one_bos.reuses_ids(server, processed, is_multimodal))
