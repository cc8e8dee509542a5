"""Over one memory for both kinds of layers too (--enable-unified-memory), a step's metadata are derived in its graph."""

from typing import Any

from sglang_gemma4 import uses
from sglang_gemma4.models.config_files import named_gemma4
from sglang_gemma4.patching import Hook, Patch


def allow(_result: None, backend: Any, runner: Any, *_args: Any, **_kwargs: Any) -> None:
    """After ``TritonAttnBackend.__init__``: step_metadata may take a Gemma 4 target or its assistant over a unified pool."""
    if not named_gemma4(runner.model_config.hf_config):
        return
    from sglang_gemma4.attention import step_metadata

    setattr(backend, step_metadata.UNIFIED, True)


PATCH = Patch(
    switch="SGLANG_GEMMA4_ATTENTION",
    why="A step over a unified pool reads through two page tables, and step_metadata left it to SGLang's launches, which take the host "
    "longer than the card: what the pool gains by running more requests a step at batch 1 loses.",
    evidence="tests/interpreted/test_step_metadata.py (the tables that SGLang's gather makes) · tests/engine/test_recorded_metadata.py "
    "(its engines' tokens) · runs/2026-11-28-26b-h200-cells (the pool without it)",
    remove_when="SGLang's triton backend prepares decode and verify metadata in init_forward_metadata_in_graph.",
    uses=(uses.unified_memory, uses.triton_decode, uses.kernels, uses.decode_graphs),
    unmeasured="steps of 26B-A4B with MTP and --enable-unified-memory at batch 1 to 64 on a card, with it and without",
    hooks=(Hook("sglang.srt.layers.attention.triton_backend.TritonAttnBackend.__init__", "after", allow, "e7fa3a24cfc9"),),
)
