"""Which assembler Triton has for a Hopper, and why one of CUDA 13.3 is needed where ``wgmma`` takes its first operand from registers.

PTX leaves the registers of an instruction that still runs to ptxas. Up to 13.2 it may write to those of a first operand before they are
read (triton-lang/triton#9433): of the first kernels of :mod:`warpgroup_products` a hundred instructions did, and their products were NaN on
a busy multiprocessor. Of 26B-A4B's served ones none does (``tests/unit/test_shipped_kernels.py``). Triton brings a newer one along for
Blackwell, which assembles for a Hopper too: kernels that need it have it, all others stay with Triton's choice.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sglang_gemma4.start.manifest import COMPILES_WITHIN

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
    if release() >= KEEPS_OPERANDS or ((newer := brought_along()) is not None and _numbers(newer) >= KEEPS_OPERANDS):
        return None
    beside = "has none beside it" if newer is None else f"has {newer.version} beside it"
    return (
        f"ptxas {'.'.join(map(str, release()))} may overwrite operands that wgmma still reads, and Triton {beside}; "
        f"{VARIABLE} gives it one of CUDA {'.'.join(map(str, KEEPS_OPERANDS))} or later"
    )


def brought_along() -> Any:
    """Triton's own assembler for Blackwell, whatever TRITON_PTXAS_BLACKWELL_PATH names (FlashInfer sets it), or None."""
    import triton
    from triton import knobs

    path = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas-blackwell"
    return knobs.NvidiaTool.from_path(str(path)) if path.exists() else None


@contextmanager
def keeping_operands() -> Iterator[None]:
    """Triton assembles with one that overwrites no operand, if it has one; the version is in the key of what it compiles."""
    from triton import knobs
    from triton.backends.nvidia.compiler import get_ptxas_version

    newer = brought_along() if release() < KEEPS_OPERANDS else None
    if newer is None:
        yield
        return
    with knobs.nvidia.scope():  # it puts the environment back
        os.environ[VARIABLE] = newer.path
        get_ptxas_version.cache_clear()
        try:
            yield
        finally:
            get_ptxas_version.cache_clear()


def keeps_operands(kernel: Any) -> Any:
    """Have a kernel compiled within :func:`keeping_operands`, whoever launches it first."""
    compile_one = getattr(kernel, "_do_compile", None)  # an interpreted one has none
    if compile_one is not None:

        def compiled(*args: Any, **named: Any) -> Any:
            with keeping_operands():
                return compile_one(*args, **named)

        kernel._do_compile = compiled
        setattr(kernel, COMPILES_WITHIN, keeping_operands)  # for who compiles it without a launch
    return kernel
