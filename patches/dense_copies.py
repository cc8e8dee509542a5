"""Many rows are multiplied by bfloat16 copies of 4-bit dense weights, where all copies are a small part of the card."""

from typing import Any

from sglang_gemma4 import uses
from sglang_gemma4.patching import Hook, Patch


def copy_from_now_on(_result: None, model: Any, *_args: Any, **_named: Any) -> None:
    """After ``Gemma4TextModel.__init__``: its weights are not loaded yet."""
    if model.quant_config is None:
        return
    from sglang_gemma4.models.layers import four_bit_layers

    four_bit_layers.want_copies(True)


PATCH = Patch(
    switch="SGLANG_GEMMA4_FEW_ROW_LINEAR",
    why="From 9 requests with MTP on, and in each prefill chunk, a layer's dense weights of 26B-A4B are written out as bfloat16 before "
    "cuBLAS multiplies: four products take 99 µs at 128 rows, 57 without that, 1.3 ms of a step of 14 to 22. All of them are 3.1 GiB.",
    evidence="H200: four products of a layer 92 µs at 64 rows, 53 with copies (runs/2026-11-29-26b-h200-int4-chunks); a server at gaps of "
    "50 ms: a burst of 32 1.06 times the tokens/s, a mix 1.05 times (runs/2026-11-29-26b-h200-int4-gaps); by the gaps of today, beside "
    "neither copies nor those: bursts of 8, 32, 80 1.11, 1.24, 1.14 times, a mix 1.09 (runs/2026-11-29-26b-h200-int4-auto)",
    remove_when="SGLang multiplies 4-bit weights by wgmma.",
    uses=(uses.four_bits, uses.four_bit_rows, uses.kernels),
    hooks=(Hook("sglang.srt.models.gemma4_causal.Gemma4TextModel.__init__", "after", copy_from_now_on, "b7e9b394300f"),),
)
