"""Weight formats that the few-row kernels read: unquantised, fp8 with a scale per output, or 4-bit.

4-bit weights have a scale, and perhaps a zero point, per group of inputs. Kernels take the format as an argument and
convert what they load to the activation's type in registers. An fp8 scale multiplies the float32 sums, a 4-bit scale
the weight. Every e4m3 value is exact in bfloat16 and float16, so an fp8 result is as exact as one with weights
dequantised to float32. SGLang's own fp8 GEMMs round activations to fp8; these do not, and differ by that rounding.
"""

import functools
from dataclasses import dataclass
from typing import TypeAlias

import torch
import triton
import triton.language as tl

FP8 = torch.float8_e4m3fn
CAPABILITY = (8, 9)
"""Lowest compute capability on which Triton converts e4m3: Ada."""


@dataclass(frozen=True)
class Scaled:
    """An fp8 weight: its values are ``levels`` times ``scale``.

    ``levels``: ``[..., outputs, width]`` float8_e4m3fn. ``scale``: ``[..., outputs]`` float32; a scale that all
    outputs share is expanded to that shape (:func:`scaled`). ``block``: if not 0, this many outputs and inputs share
    a scale, and ``scale`` is ``[outputs / block, width / block]``, each rounded up; dense GEMMs only.
    """

    levels: torch.Tensor
    scale: torch.Tensor
    block: int = 0

    @property
    def shape(self) -> torch.Size:
        """Shape of the dequantised values."""
        return self.levels.shape

    @property
    def device(self) -> torch.device:
        """The tensor's device."""
        return self.levels.device

    def first(self, outputs: int) -> "Scaled":
        """The weight of the first ``outputs`` rows; two-dimensional weights only."""
        return Scaled(self.levels[:outputs], self.scale[: -(-outputs // self.block) if self.block else outputs], self.block)


@dataclass(frozen=True)
class Grouped:
    """A 4-bit weight: an input's value is its ``levels`` entry minus its group's zero point, times its group's scale.

    ``levels``: ``[..., outputs, width / 2]`` uint8, the first of two inputs in the low bits, contiguous. ``scale``:
    ``[..., outputs, width / group]`` of the activation's type, contiguous. ``zeros``:
    ``[..., outputs / 2, width / group]`` uint8, the first of two outputs in the low bits, contiguous; None if all zero
    points are 8 (symmetric).
    """

    levels: torch.Tensor
    scale: torch.Tensor
    zeros: torch.Tensor | None = None

    @property
    def shape(self) -> torch.Size:
        """Shape of the dequantised values."""
        return torch.Size((*self.levels.shape[:-1], 2 * self.levels.shape[-1]))

    @property
    def device(self) -> torch.device:
        """The tensor's device."""
        return self.levels.device

    def first(self, outputs: int) -> "Grouped":
        """The weight of the first ``outputs`` rows; two-dimensional weights only."""
        return Grouped(self.levels[:outputs], self.scale[:outputs], None if self.zeros is None else self.zeros[: outputs // 2])

    @property
    def group(self) -> int:
        """Inputs that share a scale."""
        return int(self.shape[-1] // self.scale.shape[-1])


BLOCK = 128
"""Outputs and inputs per fp8 block that kernels support."""
GROUPS = (32, 64, 128)
"""Inputs per 4-bit group that kernels support."""
Weight: TypeAlias = torch.Tensor | Scaled | Grouped


def scaled(levels: torch.Tensor, scale: torch.Tensor) -> Scaled:
    """The fp8 weight ``levels`` ``[..., outputs, width]`` with one scale per output, or one for all outputs.

    Args:
        scale: float32 of any shape, with one element per output or one per leading entry (such as an expert).

    Raises:
        ValueError: ``scale`` has another number of elements.
    """
    rows = levels.shape[:-1]
    if scale.numel() == rows.numel():
        return Scaled(levels, scale.reshape(rows))
    if scale.numel() == rows[:-1].numel():
        return Scaled(levels, scale.reshape(*rows[:-1], 1).expand(rows))
    raise ValueError(
        f"{scale.numel()} scales for quantised values {tuple(levels.shape)}; {rows.numel()} or {rows[:-1].numel()} are supported"
    )


def levels_of(weight: Weight) -> torch.Tensor:
    """The tensor that a kernel loads; for 4-bit weights int32 words of eight inputs."""
    if isinstance(weight, Grouped):
        return weight.levels.view(torch.int32)
    return weight.levels if isinstance(weight, Scaled) else weight


def scale_of(weight: Weight) -> tuple[torch.Tensor | int | None, ...]:
    """Kernel arguments: the scales and their strides by expert and output; as many Nones for an unquantised weight.

    Scales of groups are contiguous, so their strides are None.
    """
    if isinstance(weight, Scaled):
        return (weight.scale, *weight.scale.stride())
    if isinstance(weight, Grouped):
        return (weight.scale, *(None,) * (weight.levels.dim() - 1))
    return (None,) * len(weight.shape)


def zeros_of(weight: Weight) -> torch.Tensor | None:
    """Kernel argument: the zero points of asymmetric 4-bit weights, or None."""
    return weight.zeros if isinstance(weight, Grouped) else None


def words_in_group(weight: Weight) -> int:
    """int32 words that share a scale; 0 for a weight that is not :class:`Grouped`."""
    return weight.group // 8 if isinstance(weight, Grouped) else 0


def dequantised(weight: Weight) -> torch.Tensor:
    """The dequantised values in float32, of the weight's shape."""
    if isinstance(weight, Grouped):
        levels = torch.stack((weight.levels & 15, weight.levels >> 4), dim=-1).flatten(-2).float()
        zeros: torch.Tensor | int = 8
        if weight.zeros is not None:
            zeros = torch.stack((weight.zeros & 15, weight.zeros >> 4), dim=-2).flatten(-3, -2).float().repeat_interleave(weight.group, -1)
        return (levels - zeros) * weight.scale.float().repeat_interleave(weight.group, -1)
    if not isinstance(weight, Scaled):
        return weight.float()
    if not weight.block:
        return weight.levels.float() * weight.scale.unsqueeze(-1)
    wide = weight.scale.repeat_interleave(weight.block, -2).repeat_interleave(weight.block, -1)
    return weight.levels.float() * wide[..., : weight.shape[-2], : weight.shape[-1]]


@triton.jit
def as_type(levels, dtype: tl.constexpr):  # type: ignore[no-untyped-def]
    """Loaded levels as the activation's type.

    By way of float32: Hopper's one instruction from float16 to bfloat16 runs at a quarter of the rate of the three that this becomes.
    """
    if levels.dtype == dtype:
        return levels
    return levels.to(tl.float32).to(dtype)


def reason_against_weight(x: torch.Tensor, weight: Weight) -> str | None:
    """Why a weight's format does not fit ``x``, or None; shapes are not checked."""
    if isinstance(weight, Grouped):
        return _reason_against_grouped(x, weight)
    if not isinstance(weight, Scaled):
        return None if weight.dtype == x.dtype else f"the weight is {weight.dtype} and x {x.dtype}"
    if weight.levels.dtype != FP8 or weight.scale.dtype != torch.float32:
        return f"quantised values of {weight.levels.dtype} with scales of {weight.scale.dtype}; {FP8} with torch.float32 are supported"
    if weight.block not in (0, BLOCK):
        return f"fp8 in blocks of {weight.block}; {BLOCK} are supported"
    blocks = tuple(-(-size // BLOCK) for size in weight.levels.shape)
    if weight.scale.shape != (blocks if weight.block else weight.levels.shape[:-1]):
        return f"scales {tuple(weight.scale.shape)} for quantised values {tuple(weight.levels.shape)}"
    return reason_against_fp8(x.device)


def _reason_against_grouped(x: torch.Tensor, weight: Grouped) -> str | None:
    levels, scale = weight.levels, weight.scale
    if levels.dtype != torch.uint8 or scale.dtype != x.dtype:
        return f"4-bit values in {levels.dtype} with scales of {scale.dtype} for x of {x.dtype}; torch.uint8 and x's are supported"
    if levels.shape[:-1] != scale.shape[:-1] or weight.shape[-1] % scale.shape[-1] or weight.group not in GROUPS:
        return f"levels {tuple(levels.shape)} with scales {tuple(scale.shape)}; groups of {', '.join(map(str, GROUPS))} are supported"
    if not (levels.is_contiguous() and scale.is_contiguous()) or levels.data_ptr() % 16:
        return "quantised values or scales are not contiguous, or do not begin at a multiple of 16 bytes"
    if (zeros := weight.zeros) is not None:
        pairs = torch.Size((*scale.shape[:-2], scale.shape[-2] // 2, scale.shape[-1]))
        if zeros.dtype != torch.uint8 or zeros.shape != pairs or scale.shape[-2] % 2 or not zeros.is_contiguous():
            return (
                f"zero points {tuple(zeros.shape)} of {zeros.dtype} for scales {tuple(scale.shape)}; {tuple(pairs)} of uint8 are supported"
            )
    if x.is_cuda and x.dtype != torch.bfloat16:
        return f"x is {x.dtype}; 4-bit weights are multiplied by bfloat16"
    return None


@functools.cache
def reason_against_fp8(device: torch.device) -> str | None:
    """Why kernels on this device do not read fp8, or None."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) >= CAPABILITY:
        return None
    return f"fp8 is converted on GPUs of compute capability {CAPABILITY[0]}.{CAPABILITY[1]} and later"
