"""What a kernel needs to know of the card: its shared memory, by which tiles are chosen or a kernel declines, and its multiprocessors."""

import functools
from dataclasses import dataclass

import torch
import triton

LEAST = 101_376
"""Bytes of shared memory that a program with fixed tiles needs at most; an Ada, an A10 and a consumer Blackwell have as many."""


@dataclass(frozen=True)
class Card:
    """What the choice of tiles depends on.

    ``shared``: bytes of shared memory a program may have. ``holds``: matrix instructions read blocks of 64 rows and more from shared
    memory themselves (Hopper and data-centre Blackwell; consumer Blackwell's do not), so a block is held there while its product runs,
    beside those loaded ahead.
    """

    shared: int
    holds: bool


HOPPER = Card(232_448, holds=True)
"""An H100 or H200. Interpreted kernels take its tiles too."""


@functools.cache
def card(device: torch.device) -> Card:
    """The :class:`Card` that ``device`` is."""
    if device.type != "cuda":
        return HOPPER
    found = torch.cuda.get_device_properties(device)
    shared = getattr(found, "shared_memory_per_block_optin", found.shared_memory_per_block)  # ROCm has no more to opt in to
    return Card(int(shared), holds=9 <= found.major < 12)


def this_device() -> torch.device:
    """The card that this process computes on, or the CPU."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


@functools.cache
def multiprocessors(device: torch.device, elsewhere: int = 1) -> int:
    """How many the card has; ``elsewhere``, if ``device`` is no card."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count) if device.type == "cuda" else elsewhere


def reason_against_device(device: torch.device) -> str | None:
    """Why no Triton kernel runs there, or None: it needs a card or Triton's interpreter."""
    return None if device.type == "cuda" or triton.knobs.runtime.interpret else f"Triton does not run on {device.type}"


def reason_against_card(device: torch.device) -> str | None:
    """Why kernels with fixed tiles do not run on this card, or None."""
    shared = card(device).shared
    return None if shared >= LEAST else f"a program may have {shared:,} bytes of the card's shared memory; {LEAST:,} are needed"
