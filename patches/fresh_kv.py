"""In verify steps, layers that share KV take the step's keys and values from the layer that computed them."""

from typing import Any

from sglang_gemma4.patching import Hook, Patch, decline, switches, uses


def hand_over(_result: None, model: Any, *_args: Any, **_kwargs: Any) -> None:
    """After ``Gemma4TextModel.__init__``."""
    from sglang_gemma4.models.layers import fresh_kv

    if fresh_kv.mark(model) and not switches.part_is_on("qkv_rope", PATCH.switch):
        decline("fresh_kv", "qkv_rope is off, whose launch computes them")


PATCH = Patch(
    switch="SGLANG_GEMMA4_QKV",
    why="Each of E4B's 18 and E2B's 20 layers that share KV gathers a verify step's own keys and values from the pool, all the same rows.",
    evidence="srt/layers/attention/triton_backend.py:1700-1711 · E4B on an H200: most of the gathers' 58, 173 and 295 µs of a step at "
    "batch 1, 32 and 80, runs/2026-11-26-e4b-h200-steps · with other changes steps are 8, 5, 6 and 2 % shorter at batch 1, 8, 32 and 80, "
    "runs/2026-11-26-e4b-h200-steps-again",
    remove_when="SGLang's triton backend reads each owner's rows back once a step, or takes them from its layer.",
    uses=(uses.shared_kv, uses.speculation, uses.triton_decode, uses.kernels),
    hooks=(Hook("sglang.srt.models.gemma4_causal.Gemma4TextModel.__init__", "after", hand_over, "b7e9b394300f"),),
)
