"""Scratch memory for 4-bit weights, dequantised layer after layer (:mod:`~sglang_gemma4.kernels.written_out`)."""

from weakref import WeakValueDictionary

import torch

_ROOMS: WeakValueDictionary[tuple[str, int, torch.dtype, torch.device], torch.Tensor] = WeakValueDictionary()


def shared_room(whose: str, numbers: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Uninitialised ``[numbers]``: the same memory for all layers that ask for it, as long as one of them is alive.

    Args:
        whose: layers of one name use it one after the other. Dense GEMMs may run in parallel with experts.
    """
    key = (whose, numbers, dtype, device)
    room = _ROOMS.get(key)
    if room is None:
        _ROOMS[key] = room = torch.empty(numbers, dtype=dtype, device=device)
    return room
