"""Programmatic dependent launch: a kernel's programs start before the previous kernel ends, and wait for its output.

A decode step runs about 900 short kernels in sequence. Without this, the GPU drains, launches and refills between
each two of them. With it, the next kernel's programs are already resident and loading their weights. It uses PTX's
``griddepcontrol``, which Hopper and later GPUs have.

It is safe because every program of every kernel here calls :func:`await_inputs` exactly once, before it writes
anything or reads anything but weights. So only reads of weights overlap the previous kernel. That kernel waited for
its own predecessor, so all earlier ones have ended too. A kernel lets the next one start only after its own wait, so
at most two kernels overlap.
"""

import functools
from typing import Any

import torch
import triton
import triton.language as tl

CAPABILITY = (9, 0)
LINE = 128
"""Bytes that one prefetch loads."""

_wanted = False


def want(wanted: bool) -> None:
    """Enable or disable dependent launches in this process; GPUs without support never use them."""
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
        return f"the GPU's compute capability is {found[0]}.{found[1]}; {CAPABILITY[0]}.{CAPABILITY[1]} and later are supported"
    return None


@functools.cache
def launch_options(device: torch.device, late: bool = False) -> dict[str, Any]:
    """Launch arguments of a kernel: its constant ``PDL`` (:data:`LATE` if ``late``) and, if enabled, ``launch_pdl``."""
    if not _wanted or reason_against(device) is not None:
        return {"PDL": False}
    return {"PDL": LATE.value if late else True, "launch_pdl": True}


LATE = tl.constexpr(2)
"""Value of ``PDL`` instead of True: the next kernel's programs start at :func:`release_next`, not right after the wait.

For kernels that stream more than the L2 cache holds. What the next kernel prefetches meanwhile is evicted before it is
used, and the prefetch takes bandwidth from this kernel.
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
