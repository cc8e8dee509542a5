"""Programmatic dependent launch: a kernel's programs start while the kernel before still ends, and wait before they use what it wrote.

A decode step is some 900 short kernels one after the other; between two of them the card drains, launches and fills again. Launched so, the
next kernel's programs are on the card already and have their weights on the way. Hopper and later; PTX's ``griddepcontrol``.

What makes it safe, in every kernel here: each of its programs calls :func:`await_inputs` exactly once, before it reads anything but weights
and before it writes anything. So of a kernel that overlaps an earlier one only its reads of weights do: a kernel that waits for the one
before waits for all before that one, since it waited too. It lets the next one's programs come when it has waited, so only neighbours
overlap.
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
    """Whether kernels of this process are launched so, where the card can."""
    global _wanted
    _wanted = wanted
    launch_options.cache_clear()


@functools.cache
def reason_against(device: torch.device) -> str | None:
    """Why kernels on this device are launched one after the other, or None."""
    if device.type != "cuda":
        return f"tensors are on {device.type}"
    found = torch.cuda.get_device_capability(device)
    if found < CAPABILITY:
        return f"the card's compute capability is {found[0]}.{found[1]}; {CAPABILITY[0]}.{CAPABILITY[1]} and later are taken"
    return None


@functools.cache
def launch_options(device: torch.device) -> dict[str, Any]:
    """Arguments for a kernel's launch: its constant ``PDL``, and Triton's option where it is true."""
    if not _wanted or reason_against(device) is not None:
        return {"PDL": False}
    return {"PDL": True, "launch_pdl": True}


@triton.jit
def await_inputs(PDL: tl.constexpr):  # type: ignore[no-untyped-def]
    """Wait until the kernel before has ended and its writes are seen, then let the next one's programs come."""
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def prefetch(pointers):  # type: ignore[no-untyped-def]
    """Bring the cache lines of ``pointers`` to L2; nothing waits for them. They must be addresses that may be read."""
    tl.inline_asm_elementwise("prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [pointers], dtype=tl.int32, is_pure=False, pack=1)
