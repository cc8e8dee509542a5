"""Properties of the GPU that kernels depend on: shared memory, which limits their tiles, and multiprocessors."""

import functools
from dataclasses import dataclass

import torch
import triton

LEAST = 101_376
"""Most bytes of shared memory that a program with fixed tiles needs; Ada, A10 and consumer Blackwell have as many."""


@dataclass(frozen=True)
class Card:
    """Properties that the choice of tiles depends on.

    ``shared``: bytes of shared memory that a program may have. ``holds``: matrix instructions read blocks of 64 rows
    and more directly from shared memory (Hopper and data-centre Blackwell, not consumer Blackwell). Such a block
    stays in shared memory while its GEMM runs, in addition to the blocks loaded ahead.
    """

    shared: int
    holds: bool


HOPPER = Card(232_448, holds=True)
"""An H100 or H200. Interpreted kernels use its tiles too."""


@functools.cache
def card(device: torch.device) -> Card:
    """The properties of ``device``; a Hopper's if it is not a CUDA device."""
    if device.type != "cuda":
        return HOPPER
    found = torch.cuda.get_device_properties(device)
    shared = getattr(found, "shared_memory_per_block_optin", found.shared_memory_per_block)  # ROCm has no separate opt-in limit
    return Card(int(shared), holds=9 <= found.major < 12)


def this_device() -> torch.device:
    """The current CUDA device, or the CPU if there is none."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


@functools.cache
def multiprocessors(device: torch.device, elsewhere: int = 1) -> int:
    """Number of multiprocessors of ``device``; ``elsewhere`` if it is not a CUDA device."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count) if device.type == "cuda" else elsewhere


def reason_against_device(device: torch.device) -> str | None:
    """Why Triton kernels do not run on ``device``, or None: they need a CUDA device or Triton's interpreter."""
    return None if device.type == "cuda" or triton.knobs.runtime.interpret else f"Triton does not run on {device.type}"


def reason_against_card(device: torch.device) -> str | None:
    """Why kernels with fixed tiles do not run on this GPU, or None."""
    shared = card(device).shared
    return None if shared >= LEAST else f"a program may have {shared:,} bytes of the GPU's shared memory; {LEAST:,} are needed"
