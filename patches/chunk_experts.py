"""4-bit experts of a prefill chunk go from memory into the registers of Hopper's matrix instruction."""

from typing import Any

from sglang_gemma4.patching import Hook, Patch, decline, uses


def take_chunks(_result: None, moe: Any, hidden_size: int, layer_id: int, config: Any, *_args: Any, **_kwargs: Any) -> None:
    """After ``Gemma4MoE.__init__``, whose arguments come by name; behind ``prefill_experts``, so that it is asked before that."""
    from sglang_gemma4.kernels.card import this_device
    from sglang_gemma4.kernels.warpgroup_products import reason_against_card
    from sglang_gemma4.models.layers import expert_layers

    card = this_device()
    problem = reason_against_card(card)
    if problem is None:
        expert_layers.take_chunks(moe.experts, config.hidden_activation)
    elif card.type == "cuda":
        decline("chunk_experts", problem)


PATCH = Patch(
    switch="SGLANG_GEMMA4_EXPERTS",
    why="An expert has tens to hundreds of rows of a chunk. Kernels of few rows convert its words for every 32 of them, and writing them "
    "out first takes half a millisecond a layer of 26B-A4B.",
    evidence="H200: a layer of 26B-A4B at 1,024, 2,048 and 4,096 tokens 428, 678 and 1,233 µs for 552, 1,020 and 1,373 "
    "(runs/2026-11-29-26b-h200-int4-gaps); a server of 4 bits with dense_copies beside it and in other blocks: a mix 1.10 times the "
    "tokens/s, long prompts 1.23 times (runs/2026-11-29-26b-h200-int4-chunks)",
    remove_when="SGLang multiplies 4-bit experts with gelu by wgmma.",
    uses=(uses.moe, uses.four_bits, uses.hopper, uses.any_batch),
    hooks=(Hook("sglang.srt.models.gemma4_causal.Gemma4MoE.__init__", "after", take_chunks, "a63fb2abba48"),),
)
