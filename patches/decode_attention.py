"""Decode and draft steps on triton go through the kernel of the verify step."""

from typing import Any

from sglang_gemma4.models.config_files import named_gemma4
from sglang_gemma4.patching import Hook, Patch, tell, uses


def take_decode(_result: None, backend: Any, runner: Any, *_args: Any, **_kwargs: Any) -> None:
    """After ``TritonAttnBackend.__init__``: a Gemma 4 target or its assistant.

    Keys are split as ``--triton-attention-split-tile-size`` says, which SGLang reads in other modes than its help names; with
    ``--enable-deterministic-inference`` alone by SGLang's own size, 256.
    """
    if not named_gemma4(runner.model_config.hf_config):
        return
    from sglang.srt.runtime_context import get_exec

    from sglang_gemma4.attention.decode import DecodeAttention

    part_keys = get_exec().kernel.triton_attention_split_tile_size or backend.split_tile_size
    backend.decode_attention_fwd = DecodeAttention(backend.decode_attention_fwd, part_keys)
    if part_keys is not None:
        tell("decode_attention", f"decode attention splits a request's keys by its length alone, {part_keys} keys a part")


PATCH = Patch(
    switch="SGLANG_GEMMA4_ATTENTION",
    why="Stock's decode kernel takes 12 times the time of reading the keys at batch 1, 1.5 times at batch 32.",
    evidence="runs/2026-11-21-26b-stock-steps · kernels/ops/attention/decode_attention.py:1191 · the kernel alone 1.1 to 6 times as fast; "
    "in a server measured together with verify_attention only",
    remove_when="SGLang's Triton decode cuts each request by its length and the card's size.",
    uses=(uses.triton_decode, uses.kernels),
    hooks=(Hook("sglang.srt.layers.attention.triton_backend.TritonAttnBackend.__init__", "after", take_decode, "e7fa3a24cfc9"),),
)
