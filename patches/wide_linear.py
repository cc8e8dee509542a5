"""4-bit dense products of tens to hundreds of rows go from memory into the registers of Hopper's matrix instruction."""

from typing import Any

from sglang_gemma4 import uses
from sglang_gemma4.patching import Hook, Patch, decline


def multiply_wide(_result: None, model: Any, *_args: Any, **_named: Any) -> None:
    """After ``Gemma4TextModel.__init__``."""
    if model.quant_config is None:
        return
    from sglang_gemma4.kernels.card import this_device
    from sglang_gemma4.kernels.dense import wide_linear
    from sglang_gemma4.kernels.warpgroup_products import reason_against_card

    card = this_device()
    problem = reason_against_card(card)
    if problem is not None and card.type == "cuda":
        decline("wide_linear", problem)
    wide_linear.want(problem is None)


PATCH = Patch(
    switch="SGLANG_GEMMA4_FEW_ROW_LINEAR",
    why="A verify step of 32 requests has 128 rows: written out for cuBLAS, a layer's dense weights of 26B-A4B are 100 MB of memory more, "
    "written and read, in each step.",
    evidence="runs/2026-11-26-26b-h200-int4 (four products of a layer: 97 µs at 128 rows, 55 by cuBLAS alone) · a first version of this "
    "gave NaN on a card, runs/2026-11-28-four-bit-warpgroups",
    remove_when="SGLang multiplies 4-bit weights by wgmma.",
    uses=(uses.quantised, uses.four_bit_rows, uses.hopper),
    unmeasured="as assembled by itself on a card; products of 26B-A4B at 33 to 2,048 rows, steps at batch 16 to 80 "
    "(tests/gpu/quant_stages.py: wide-tests, linear-int4, int4-wide)",
    hooks=(Hook("sglang.srt.models.gemma4_causal.Gemma4TextModel.__init__", "after", multiply_wide, "b7e9b394300f"),),
)
