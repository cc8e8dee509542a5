"""A MoE layer of a prefill chunk in three launches after the rows lie in blocks: gate and up with the activation, down, sum.

An expert has tens to thousands of rows here, so arithmetic and the way to it bind both products, not reading the weights. Gate and up are
one product of twice the columns; its result lies in the order of the blocks, so that the second product loads it, and either product its
weights, through tensor descriptors (Hopper's TMA). Of an expert's last block, half is computed where at most half its places are taken.
"""

from sglang_gemma4.kernels.experts.prefill_experts.launch import (
    PrefillTile,
    Tiles,
    down,
    gate_and_up,
    has_tma,
    prefill_experts,
    reason_against_card,
    reason_against_descriptors,
    tiles_for,
)

__all__ = [
    "PrefillTile",
    "Tiles",
    "down",
    "gate_and_up",
    "has_tma",
    "prefill_experts",
    "reason_against_card",
    "reason_against_descriptors",
    "tiles_for",
]
