"""Prefill on triton through a kernel with tiles for head_dim 256 and 512."""

from typing import Any

from sglang_gemma4.models.config_files import named_gemma4
from sglang_gemma4.patching import Hook, Patch, tell, uses


def take_prefill(_result: None, backend: Any, runner: Any, *_args: Any, **_kwargs: Any) -> None:
    """After ``TritonAttnBackend.__init__``: a Gemma 4 target. Deterministic inference never calls what this replaces."""
    if runner.is_draft_worker or backend.enable_deterministic or not named_gemma4(runner.model_config.hf_config):
        return
    import torch

    from sglang_gemma4.attention.prefill import PrefillAttention
    from sglang_gemma4.kernels.attention.tiles import smaller_than_measured
    from sglang_gemma4.kernels.card import card

    backend.extend_attention_fwd = PrefillAttention(backend.extend_attention_fwd)
    dims = (runner.model_config.swa_head_dim, runner.model_config.head_dim)
    said = smaller_than_measured(dims, runner.dtype, card(torch.device(runner.device)))
    if said:
        tell("prefill_attention", said)


PATCH = Patch(
    switch="SGLANG_GEMMA4_ATTENTION",
    why="Stock's extend kernel loads nothing ahead, walks keys outside the window and reads K and V once for every query head: "
    "a quarter of a prefill, 14 times its floor.",
    evidence="runs/2026-11-21-26b-stock-steps · kernels/ops/attention/extend_attention.py:111, 147, 542 · 32 prompts of 1,000 tokens on "
    "an H200: 51 ms of attention, stock 141, runs/2026-11-22-26b-kernels-steps",
    remove_when="SGLang's extend kernel pipelines on Hopper and starts at the window.",
    uses=(uses.triton_prefill, uses.kernels, uses.any_batch),
    hooks=(Hook("sglang.srt.layers.attention.triton_backend.TritonAttnBackend.__init__", "after", take_prefill, "e7fa3a24cfc9"),),
)
