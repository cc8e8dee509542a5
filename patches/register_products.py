"""4-bit weights of few rows go from memory straight into the matrix instruction's registers, dense and experts."""

from typing import Any

from sglang_gemma4 import uses
from sglang_gemma4.patching import Hook, Patch, decline


def multiply_in_registers(_result: None, *_args: Any, **_kwargs: Any) -> None:
    """After ``Gemma4TextModel.__init__``."""
    import torch

    from sglang_gemma4.kernels import register_products

    cuda = torch.cuda.is_available()
    problem = register_products.reason_against(torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu"))
    if problem is not None:
        decline("register_products", problem)
    register_products.want(problem is None)


PATCH = Patch(
    switch="SGLANG_GEMMA4_FEW_ROW_LINEAR",
    why="Triton lays a tile out by itself: a 4-bit weight passes through shared memory and takes some ten instructions where three would "
    "do, and rows are put by their places in words in a launch of their own.",
    evidence="TODO",
    remove_when="SGLang reads 4-bit weights of few rows at the card's copy speed.",
    uses=(uses.quantised, uses.kernels),
    hooks=(Hook("sglang.srt.models.gemma4_causal.Gemma4TextModel.__init__", "after", multiply_in_registers, "b7e9b394300f"),),
)
