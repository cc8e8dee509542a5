"""Which assembler Triton has for a Hopper, and why one of CUDA 13.3 is needed where ``wgmma`` takes its first operand from registers.

PTX leaves the registers of an instruction that still runs to ptxas. Up to 13.2 it may write to those of a first operand before they are
read (triton-lang/triton#9433): of the first kernels of :mod:`warpgroup_products` a hundred instructions did, and their products were NaN on
a busy multiprocessor. Of 26B-A4B's served ones none does (``tests/unit/test_shipped_kernels.py``). Triton brings a newer one along for
Blackwell.
"""

import os
from pathlib import Path
from typing import Any

VARIABLE = "TRITON_PTXAS_PATH"
"""Triton's own, for cards before Blackwell."""
KEEPS_OPERANDS = (13, 3)


def release() -> tuple[int, ...]:
    """Of the assembler that this process compiles with."""
    from triton import knobs

    return _numbers(knobs.nvidia.ptxas)


def _numbers(tool: Any) -> tuple[int, ...]:
    return tuple(map(int, tool.version.split(".")))


def reason_against_register_operands() -> str | None:
    """Why kernels must not have first operands in registers while others are computed, or None."""
    found = release()
    if found >= KEEPS_OPERANDS:
        return None
    return (
        f"ptxas {'.'.join(map(str, found))} may overwrite operands that wgmma still reads; SGLANG_GEMMA4_WITH=hopper_assembler or "
        f"{VARIABLE} give Triton one of CUDA {'.'.join(map(str, KEEPS_OPERANDS))} or later"
    )


def brought_along() -> Any:
    """Triton's own assembler for Blackwell, whatever TRITON_PTXAS_BLACKWELL_PATH names (FlashInfer sets it), or None."""
    import triton
    from triton import knobs

    path = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas-blackwell"
    return knobs.NvidiaTool.from_path(str(path)) if path.exists() else None


def take_newer() -> str | None:
    """Have this process and those it starts compile with the one that Triton has for Blackwell; why not, or None.

    Before the first kernel is compiled: Triton keeps the version that is part of every kernel's key.
    """
    if release() >= KEEPS_OPERANDS:
        return None
    if os.environ.get(VARIABLE):
        return f"{VARIABLE}={os.environ[VARIABLE]} is of CUDA {'.'.join(map(str, release()))}"
    if (newer := brought_along()) is None:
        return "Triton has no assembler for Blackwell with it"
    if _numbers(newer) < KEEPS_OPERANDS:
        return f"Triton's assembler for Blackwell is of CUDA {newer.version}"
    os.environ[VARIABLE] = newer.path
    return None
