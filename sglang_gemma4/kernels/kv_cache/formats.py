"""KV cache formats with one byte per element (int8 or fp8 e4m3) and a float32 scale per token and head, for K and V.

A head's row is divided by its largest magnitude, so that it fills the format's range; an outlier coarsens only its
own token and head. The dequantised value is the stored value times the scale. Every kernel here follows
:func:`quantise_reference`: NaN is stored as 0, infinity as the largest finite value, and a row of (almost) zeros has
scale 0. So any memory full of zeros is a valid cache.
"""

from dataclasses import dataclass

import torch

TINY = 1e-30
"""Rows whose largest magnitude is at most this are stored as zeros: the inverse of their scale would not be finite."""
HUGE = 3e38
"""Larger magnitudes are stored as this."""


@dataclass(frozen=True)
class KvFormat:
    """A format: its name on the command line, element and storage type, and the stored value of a row's largest magnitude.

    fp8 elements are stored as bytes: torch cannot write fp8 tensors by index, and SGLang mistakes an fp8 pool on a
    CPU for another type.
    """

    name: str
    dtype: torch.dtype
    stored: torch.dtype
    largest: float

    @property
    def least_capability(self) -> tuple[int, int]:
        """Lowest compute capability on which Triton converts these elements: Ada for fp8 (e4m3). For int8, the lowest
        that Triton, the kernels' bfloat16 and their tiles support at all."""
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
"""Bytes of a scale per token and head, in addition to the elements."""


def named(kv_cache_dtype: str | None) -> KvFormat | None:
    """The format of this ``--kv-cache-dtype``, or None if it is another."""
    return FORMATS.get(kv_cache_dtype or "")


def quantise_reference(rows: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantised values in ``dtype``, of ``rows``' shape, and float32 scales without the last dimension.

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
    """``levels`` ``[..., dim]`` times ``scales`` ``[...]``, in float32; without scales ``levels`` in float32."""
    return levels.float() if scales is None else levels.float() * scales.unsqueeze(-1)


def cached_rows(buffer: torch.Tensor, slots: torch.Tensor, scales: torch.Tensor | None) -> torch.Tensor:
    """The rows of a buffer of any element type at ``slots``, times their scales: ``[keys, KV heads, dim]`` float32."""
    bytes_or_rows = buffer.view(torch.int8) if buffer.dtype.itemsize == 1 else buffer  # fp8 tensors cannot be indexed into
    return dequantise_reference(bytes_or_rows[slots.long()].view(buffer.dtype), None if scales is None else scales[slots.long()])
