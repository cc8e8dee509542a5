"""Triton's kernels for a Hopper are assembled by ptxas 13.3, which overwrites no operand that wgmma still reads."""

from typing import Any

from sglang_gemma4 import uses
from sglang_gemma4.patching import Hook, Patch, decline, idle, tell

NAME = "hopper_assembler"


def take_newer(_scheduler: Any, *_args: Any, **_kwargs: Any) -> None:
    """Before ``Scheduler.__init__``: nothing was compiled, and the processes that compile ahead are started by it."""
    import torch

    from sglang_gemma4.kernels import assembler

    if not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9:
        idle(NAME, "the card is no Hopper")
        return
    if reason := assembler.take_newer():
        decline(NAME, reason)
        return
    tell(NAME, f"Triton assembles with ptxas {'.'.join(map(str, assembler.release()))}")


PATCH = Patch(
    switch="SGLANG_GEMMA4_FEW_ROW_LINEAR",
    why="ptxas 12.9, which Triton 3.8 takes for a Hopper, may write to registers of a matrix instruction's first operand before they are "
    "read. Only kernels that convert weights while others are multiplied (wide_linear, chunk_experts) were seen to be hit.",
    evidence="triton-lang/triton#9433 · tests/unit/test_warpgroup_products.py (that 13.3 writes to none of theirs) · "
    "runs/2026-11-28-four-bit-warpgroups (NaN)",
    remove_when="Triton takes ptxas 13.3 or later for Hoppers.",
    uses=(uses.quantised, uses.hopper),
    unmeasured="that all other kernels are as fast as assembled by 12.9, and the driver loads them (tests/gpu/quant_stages.py: wide-tests, "
    "int4-wide with and without it)",
    hooks=(Hook("sglang.srt.managers.scheduler.Scheduler.__init__", "before", take_newer, "93ad4787d25f"),),
)
