"""KV caches of one byte an element with a float32 scale for each token and head, of K and of V: int8 and fp8 (e4m3).

A head's row is divided by its largest magnitude, so that it fills the format's range: an outlier coarsens its own token's head and no
other. Dequantised is level times scale. Every kernel here computes what :func:`quantise_reference` says: what is no number is stored as 0,
what is infinite as the largest number, and a row of (almost) zeros has scale 0, so that any memory that holds zeros is a valid cache.
"""

from dataclasses import dataclass

import torch

TINY = 1e-30
"""Largest magnitude of a row up to which it is stored as zeros: the inverse of its scale would not be finite."""
HUGE = 3e38
"""What is larger is stored as this."""


@dataclass(frozen=True)
class KvFormat:
    """A format by its name on the command line: the element type, what memory holds it, and the level of a row's largest magnitude.

    fp8 elements are kept as bytes: torch cannot write into fp8 tensors by index, and SGLang takes an fp8 pool on a CPU for another one.
    """

    name: str
    dtype: torch.dtype
    stored: torch.dtype
    largest: float

    @property
    def least_capability(self) -> tuple[int, int]:
        """The compute capability from which Triton converts these elements: fp8 (e4m3) since Ada; of int8 the one from which Triton and
        the kernels' bfloat16 are supported at all, and tiles fit."""
        return (8, 0) if self.dtype == torch.int8 else (8, 9)


FORMATS = {
    each.name: each
    for each in (
        KvFormat("int8_per_token_head", torch.int8, torch.int8, 127.0),
        KvFormat("fp8_per_token_head", torch.float8_e4m3fn, torch.uint8, 448.0),
    )
}
BY_DTYPE = {each.dtype: each for each in FORMATS.values()}
BY_STORED = {each.stored: each for each in FORMATS.values()}
SCALE_BYTES = 4
"""Of a token's head, beside its elements."""


def named(kv_cache_dtype: str | None) -> KvFormat | None:
    """The format of this ``--kv-cache-dtype``, or None where it is none of these."""
    return FORMATS.get(kv_cache_dtype or "")


def quantise_reference(rows: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Levels of ``rows``' shape in ``dtype``, and float32 scales without the last dimension.

    Args:
        rows: ``[..., dim]``, any float dtype.
    """
    largest = BY_DTYPE[dtype].largest
    values = rows.float()
    values = torch.where(values.isnan(), 0.0, values).clamp(-HUGE, HUGE)
    top = values.abs().amax(-1, keepdim=True)
    kept = top > TINY
    levels = values * torch.where(kept, largest / torch.where(kept, top, 1.0), 0.0)
    levels = (torch.floor(levels + 0.5) if dtype == torch.int8 else levels).clamp(-largest, largest)
    return levels.to(dtype), torch.where(kept, top / largest, 0.0).squeeze(-1)


def dequantise_reference(levels: torch.Tensor, scales: torch.Tensor | None) -> torch.Tensor:
    """Float32 values of ``levels`` ``[..., dim]`` with ``scales`` ``[...]``; without, the levels are the values."""
    return levels.float() if scales is None else levels.float() * scales.unsqueeze(-1)


def cached_rows(buffer: torch.Tensor, slots: torch.Tensor, scales: torch.Tensor | None) -> torch.Tensor:
    """``[keys, KV heads, dim]`` float32: rows of a buffer, of any element type, times their scales."""
    bytes_or_rows = buffer.view(torch.int8) if buffer.dtype.itemsize == 1 else buffer  # fp8 tensors cannot be indexed into
    return dequantise_reference(bytes_or_rows[slots.long()].view(buffer.dtype), None if scales is None else scales[slots.long()])
