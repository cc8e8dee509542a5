"""Select the ptxas for Hopper kernels whose ``wgmma`` takes its first operand from registers; they need CUDA 13.3's.

PTX leaves the registers of a running instruction to ptxas. Up to 13.2 it may overwrite a first operand before it is
read (triton-lang/triton#9433). It did so for a hundred instructions of the first kernels of
:mod:`warpgroup_products`, whose results were NaN on a busy multiprocessor. No kernel served for 26B-A4B is affected
(``tests/unit/test_shipped_kernels.py``). For Blackwell, Triton ships a newer ptxas that also assembles for Hopper.
Kernels that need it use it; all others keep Triton's choice.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sglang_gemma4.start.manifest import COMPILES_WITHIN

VARIABLE = "TRITON_PTXAS_PATH"
"""Triton's environment variable for the ptxas of GPUs before Blackwell."""
KEEPS_OPERANDS = (13, 3)


def release() -> tuple[int, ...]:
    """Version of the ptxas that this process compiles with."""
    from triton import knobs

    return _numbers(knobs.nvidia.ptxas)


def _numbers(tool: Any) -> tuple[int, ...]:
    return tuple(map(int, tool.version.split(".")))


def reason_against_register_operands() -> str | None:
    """Why kernels must not hold first operands in registers while the next ones are computed, or None."""
    if release() >= KEEPS_OPERANDS or ((newer := brought_along()) is not None and _numbers(newer) >= KEEPS_OPERANDS):
        return None
    beside = "has none beside it" if newer is None else f"has {newer.version} beside it"
    return (
        f"ptxas {'.'.join(map(str, release()))} may overwrite operands that wgmma still reads, and Triton {beside}; "
        f"{VARIABLE} gives it one of CUDA {'.'.join(map(str, KEEPS_OPERANDS))} or later"
    )


def brought_along() -> Any:
    """The ptxas that Triton ships for Blackwell, or None; TRITON_PTXAS_BLACKWELL_PATH (FlashInfer sets it) is ignored."""
    import triton
    from triton import knobs

    path = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas-blackwell"
    return knobs.NvidiaTool.from_path(str(path)) if path.exists() else None


@contextmanager
def keeping_operands() -> Iterator[None]:
    """Inside, Triton uses a ptxas that overwrites no operand, if it ships one; the version is part of its cache key."""
    from triton import knobs
    from triton.backends.nvidia.compiler import get_ptxas_version

    newer = brought_along() if release() < KEEPS_OPERANDS else None
    if newer is None:
        yield
        return
    with knobs.nvidia.scope():  # restores the environment on exit
        os.environ[VARIABLE] = newer.path
        get_ptxas_version.cache_clear()
        try:
            yield
        finally:
            get_ptxas_version.cache_clear()


def keeps_operands(kernel: Any) -> Any:
    """Decorator: compile this kernel inside :func:`keeping_operands`, whoever launches it first."""
    compile_one = getattr(kernel, "_do_compile", None)  # an interpreted one has none
    if compile_one is not None:

        def compiled(*args: Any, **named: Any) -> Any:
            with keeping_operands():
                return compile_one(*args, **named)

        kernel._do_compile = compiled
        setattr(kernel, COMPILES_WITHIN, keeping_operands)  # for callers that compile it without a launch
    return kernel
