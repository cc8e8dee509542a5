"""Many rows are multiplied by bfloat16 copies of a MoE's 4-bit dense weights, where all are a small part of the card."""

from typing import Any

from sglang_gemma4.patching import Hook, Patch, uses


def make_copies(_result: None, model: Any, *_args: Any, **_named: Any) -> None:
    """After ``Gemma4TextModel.__init__``: its weights are not loaded yet. Of dense models only the memory that copies take is known."""
    if model.quant_config is None or not model.config.enable_moe_block:
        return
    from sglang.srt.arg_groups.model_override_base import resolved_view
    from sglang.srt.runtime_context import get_server_args

    from sglang_gemma4.models.layers import four_bit_layers

    given = resolved_view(get_server_args())
    four_bit_layers.want_copies(model, str(given.load_format), float(given.mem_fraction_static or 1.0))


PATCH = Patch(
    switch="SGLANG_GEMMA4_FEW_ROW_LINEAR",
    why="From 9 requests with MTP on, and in each prefill chunk, a layer's dense weights of 26B-A4B are written out as bfloat16 before "
    "cuBLAS multiplies: four products take 99 µs at 128 rows, 57 without that, 1.3 ms of a step of 14 to 22. All of them are 3.1 GiB.",
    evidence="H200: four products of a layer 92 µs at 64 rows, 53 with copies (runs/2026-11-29-26b-h200-int4-chunks); a server at gaps of "
    "50 ms: a burst of 32 1.06 times the tokens/s, a mix 1.05 times (runs/2026-11-29-26b-h200-int4-gaps); by the gaps of today, beside "
    "neither copies nor those: bursts of 8, 32, 80 1.11, 1.24, 1.14 times, a mix 1.08 (runs/2026-11-29-26b-h200-int4-auto)",
    remove_when="SGLang multiplies 4-bit weights by wgmma.",
    uses=(uses.moe, uses.four_bits, uses.four_bit_rows, uses.kernels),
    hooks=(Hook("sglang.srt.models.gemma4_causal.Gemma4TextModel.__init__", "after", make_copies, "b7e9b394300f"),),
)
