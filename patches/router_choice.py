"""At 1 to 16 tokens the router's product also chooses the experts, in one launch."""

from typing import Any

from sglang_gemma4.patching import Hook, Patch, decline, uses


def choose_in_the_product(_result: None, model: Any, *_args: Any, **_kwargs: Any) -> None:
    """After ``Gemma4TextModel.__init__``; what multiplies few rows comes first."""
    from sglang_gemma4.models.layers.router_choice import install

    problem = install(model)
    if problem is not None:
        decline("router_choice", problem)


PATCH = Patch(
    switch="SGLANG_GEMMA4_EXPERTS",
    why="The router's product is 0.2 µs of reading; its launch and the one that chooses from its logits wait for each other.",
    evidence="a layer of 26B-A4B alone on an H200 takes 80 µs for 85 at one token, 145.5 for 146.3 at 4, the same at 16 (Triton 3.6), "
    "runs/2026-11-23-26b-layer-chain",
    remove_when="SGLang's router chooses in its product's launch.",
    uses=(uses.moe, uses.kernels, uses.any_batch),
    hooks=(Hook("sglang.srt.models.gemma4_causal.Gemma4TextModel.__init__", "after", choose_in_the_product, "b7e9b394300f"),),
)
