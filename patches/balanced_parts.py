"""Decode and verify attention cuts long requests beside short ones into more parts, of about as many keys each."""

from typing import Any

from sglang_gemma4.models.config_files import named_gemma4
from sglang_gemma4.patching import Hook, Patch, uses


def balance(_result: None, backend: Any, runner: Any, *_args: Any, **_kwargs: Any) -> None:
    """After ``TritonAttnBackend.__init__``: a Gemma 4 target or its assistant."""
    if backend.enable_deterministic or not named_gemma4(runner.model_config.hf_config):
        return
    from sglang_gemma4.kernels.attention.few_query_attention import want_balanced

    want_balanced(True)


PATCH = Patch(
    switch="SGLANG_GEMMA4_ATTENTION",
    why="Every request of a step was cut into as many parts: of 62 with 61,000 keys, two programs a KV head read the longest's 5,658.",
    evidence="tests/interpreted/test_few_query_attention.py (parts of such a step: 2,829 keys, with the patch 472; equal requests are cut "
    "as before) · H200, verify step of 60 requests of 50 to 6,000 keys: 192 µs for 327 in a full layer, 105 for 118 in a sliding one; of "
    "8, cut finely already, 4 and 16 % slower, so those stay (runs/2026-11-26-26b-h200-gap)",
    remove_when="As decode_attention.",
    uses=(uses.triton_decode, uses.kernels, uses.any_batch),
    hooks=(Hook("sglang.srt.layers.attention.triton_backend.TritonAttnBackend.__init__", "after", balance, "e7fa3a24cfc9"),),
)
