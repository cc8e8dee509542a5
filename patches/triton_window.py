"""Triton decode attends to the whole sliding window, not one key less."""

from typing import Any

from sglang_gemma4.patching import Entry, Patch, uses

MODULE = "sglang.srt.layers.attention.attention_registry"
TARGETS = ("Gemma4ForCausalLM", "Gemma4ForConditionalGeneration", "Gemma4UnifiedForConditionalGeneration")


def create_triton_backend(runner: Any) -> Any:
    """The backend for ``--attention-backend triton``: ours for a Gemma 4 target, SGLang's for every other model.

    An assistant keeps SGLang's: its query stands one past the last key it reads, so distance ``window - 1`` is
    ``window - 1`` keys, and SGLang may already have freed the one before.
    """
    architectures = runner.model_config.hf_config.architectures or ()
    if runner.is_draft_worker or not any(name in TARGETS for name in architectures):
        from sglang.srt.layers.attention.attention_registry import create_triton_backend as create_stock

        return create_stock(runner)
    from sglang_gemma4.attention.triton_window import Gemma4TritonAttnBackend

    return Gemma4TritonAttnBackend(runner)


PATCH = Patch(
    switch="SGLANG_GEMMA4_MODEL_FIXES",
    why="Decode clips the sequence to window - 1 keys, prefill and transformers use window: tokens drift once a "
    "sequence is longer than the window.",
    evidence="srt/layers/attention/triton_backend.py:2869 (called from :921 and :573) · srt/models/gemma4_causal.py:84",
    remove_when="SGLang's Triton decode clips to sliding_window_size + 1 keys.",
    uses=(uses.triton_decode,),
    hooks=(Entry(f"{MODULE}.ATTENTION_BACKENDS", "triton", lambda: create_triton_backend, "9e40f19fbf98"),),
)
