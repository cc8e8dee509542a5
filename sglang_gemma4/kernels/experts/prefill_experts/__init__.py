"""A MoE layer of a prefill chunk in three launches after the rows lie in blocks: gate and up with the activation, down, sum.

An expert has tens to thousands of rows here, so both products are bound by arithmetic and its inputs, not by reading weights. Gate and up
are one product of twice the columns. Its result lies in the order of the blocks, so that it can be loaded through tensor descriptors
(Hopper's TMA), as the weights of both products are. Of an expert's last block only half is computed if at most half of it is filled.
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
