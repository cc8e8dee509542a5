"""fp8 and 4-bit weights of few rows go from memory straight into the matrix instruction's registers, dense and experts."""

from typing import Any

from sglang_gemma4.patching import Hook, Patch, decline, uses


def multiply_in_registers(_result: None, model: Any, *_args: Any, **_named: Any) -> None:
    """After ``Gemma4TextModel.__init__``."""
    if model.quant_config is None:
        return
    from sglang_gemma4.kernels import register_products
    from sglang_gemma4.kernels.card import this_device

    problem = register_products.reason_against(this_device())
    if problem is not None:
        decline("register_products", problem)
    register_products.want(problem is None)


PATCH = Patch(
    switch="SGLANG_GEMMA4_FEW_ROW_LINEAR",
    why="Triton lays a tile out by itself: a quantised weight passes through shared memory and takes some twelve instructions a pair where "
    "five do, and none is asked for before the kernel before has ended.",
    evidence="H200, products of 26B-A4B, 31B and E2B at 4 rows: 4 bits in 0.47 to 0.63 of the time by Triton, fp8 in 0.59 to 0.76; a "
    "layer's 4-bit experts at 4 to 64 tokens in 0.79 to 0.83; MTP steps of 4-bit 26B-A4B at batch 8 in 7.82 ms for 8.50, at 32 and 80 "
    "none, runs/2026-11-27-26b-h200-registers",
    remove_when="SGLang reads fp8 and 4-bit weights of few rows at the card's copy speed.",
    uses=(uses.quantised, uses.kernels, uses.any_batch),
    hooks=(Hook("sglang.srt.models.gemma4_causal.Gemma4TextModel.__init__", "after", multiply_in_registers, "b7e9b394300f"),),
)
