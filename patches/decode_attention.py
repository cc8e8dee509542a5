"""Decode and draft steps on triton go through the kernel of the verify step."""

from typing import Any

from sglang_gemma4 import uses
from sglang_gemma4.models.config_files import named_gemma4
from sglang_gemma4.patching import Hook, Patch


def take_decode(_result: None, backend: Any, runner: Any, *_args: Any, **_kwargs: Any) -> None:
    """After ``TritonAttnBackend.__init__``: a Gemma 4 target or its assistant."""
    if not named_gemma4(runner.model_config.hf_config):
        return
    from sglang_gemma4.attention.decode import DecodeAttention

    backend.decode_attention_fwd = DecodeAttention(backend.decode_attention_fwd)


PATCH = Patch(
    switch="SGLANG_GEMMA4_ATTENTION",
    why="Stock's decode kernel takes 12 times the time of reading the keys at batch 1, 1.5 times at batch 32.",
    evidence="runs/2026-11-21-26b-stock-steps · kernels/ops/attention/decode_attention.py:1191 · the kernel alone 1.1 to 6 times as fast; "
    "in a server measured together with verify_attention only",
    remove_when="SGLang's Triton decode cuts each request by its length and the card's size.",
    uses=(uses.triton_decode, uses.kernels),
    hooks=(Hook("sglang.srt.layers.attention.triton_backend.TritonAttnBackend.__init__", "after", take_decode, "e7fa3a24cfc9"),),
)
