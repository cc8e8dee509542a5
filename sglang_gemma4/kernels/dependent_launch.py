"""Programmatic dependent launch: a kernel's programs start while the kernel before still ends, and wait before they use what it wrote.

A decode step is some 900 short kernels one after the other; between two of them the card drains, launches and fills again. Launched
dependently, the next kernel's programs are already on the card and loading their weights. Hopper and later; PTX's ``griddepcontrol``.

It is safe because every program of every kernel here calls :func:`await_inputs` exactly once, before it reads anything but weights and
before it writes anything. So only reads of weights overlap the kernel before. Waiting for that kernel is waiting for all earlier ones too,
since it waited itself; and it lets the next kernel start only after its wait, so no more than two kernels overlap.
"""

import functools
from typing import Any

import torch
import triton
import triton.language as tl

CAPABILITY = (9, 0)
LINE = 128
"""Bytes that one prefetch brings."""

_wanted = False


def want(wanted: bool) -> None:
    """Whether this process launches kernels dependently, on cards that can."""
    global _wanted
    _wanted = wanted
    launch_options.cache_clear()


@functools.cache
def reason_against(device: torch.device) -> str | None:
    """Why kernels on this device are not launched dependently, or None."""
    if device.type != "cuda":
        return f"tensors are on {device.type}"
    found = torch.cuda.get_device_capability(device)
    if found < CAPABILITY:
        return f"the card's compute capability is {found[0]}.{found[1]}; {CAPABILITY[0]}.{CAPABILITY[1]} and later are supported"
    return None


@functools.cache
def launch_options(device: torch.device, late: bool = False) -> dict[str, Any]:
    """Arguments of a kernel's launch: its constant ``PDL`` (``late``: :data:`LATE`), and Triton's option if that is true."""
    if not _wanted or reason_against(device) is not None:
        return {"PDL": False}
    return {"PDL": LATE.value if late else True, "launch_pdl": True}


LATE = tl.constexpr(2)
"""A launch's ``PDL`` in place of True: the kernel lets the next one's programs start at :func:`release_next`, not at once.

For one that streams more through the L2 cache than it holds: what programs that start with it fetch ahead is gone when they need it, and
was fetched at this kernel's expense.
"""


@triton.jit
def await_inputs(PDL: tl.constexpr):  # type: ignore[no-untyped-def]
    """Wait until the kernel before has ended and its writes are visible; then, but for :data:`LATE`, let the next one's programs start."""
    if PDL:
        tl.extra.cuda.gdc_wait()
        if PDL != LATE:
            tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def release_next(PDL: tl.constexpr):  # type: ignore[no-untyped-def]
    """Where a :data:`LATE` kernel has asked for all that it reads: let the next kernel's programs start."""
    if PDL == LATE:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def prefetch(pointers):  # type: ignore[no-untyped-def]
    """Fetch the cache lines of ``pointers`` into L2 without waiting for them. Every address must be readable."""
    tl.inline_asm_elementwise("prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [pointers], dtype=tl.int32, is_pure=False, pack=1)
