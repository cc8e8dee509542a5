"""Reference dequantisation of quantised layers: fp8 and packed weights to float32, and values rounded through float8.

Layouts are those in which SGLang's loaders leave a checkpoint's tensors, before SGLang's kernels rearrange them.
"""

from collections.abc import Sequence

import torch

FLOAT8 = torch.float8_e4m3fn
FLOAT8_MOST = float(torch.finfo(FLOAT8).max)


def float8_weight(
    levels: torch.Tensor, scale: torch.Tensor, widths: Sequence[int] = (), block: Sequence[int] | None = None
) -> torch.Tensor:
    """Weights ``[..., outputs, inputs]`` in float32 from float8 values of the same shape.

    Args:
        scale: ``[..., outputs, 1]`` per row; ``[..., blocks, blocks]`` with ``block``; else ``[..., parts]``.
        widths: outputs of each fused part, for scales per part.
        block: (outputs, inputs) that share a scale; the last blocks may be cut off by the weight's edge.
    """
    values, scale = levels.float(), scale.float()
    if block is not None:
        wide = scale.repeat_interleave(block[0], -2).repeat_interleave(block[1], -1)
        return values * wide[..., : values.shape[-2], : values.shape[-1]]
    if scale.shape[-1:] == (1,) and scale.dim() == values.dim():
        return values * scale
    repeats = torch.tensor(list(widths) or [values.shape[-2]], device=scale.device)
    return values * scale.reshape(*values.shape[:-2], -1).repeat_interleave(repeats, -1)[..., None]


def packed_weight(packed: torch.Tensor, scale: torch.Tensor, bits: int = 4, zeros: torch.Tensor | None = None) -> torch.Tensor:
    """Weights ``[..., outputs, inputs]`` in float32 from compressed-tensors' packed int32 words.

    Args:
        packed: int32 ``[..., outputs, inputs * bits / 32]``: a word holds the unsigned values of consecutive inputs,
            the first in its low bits.
        scale: ``[..., outputs, inputs / group]``.
        bits: 4 or 8.
        zeros: int32 ``[..., outputs * bits / 32, inputs / group]``, zero points of consecutive outputs, packed
            likewise; None: ``2 ** (bits - 1)``.
    """
    half = 1 << (bits - 1)
    levels = _unpacked(packed, bits)
    group = levels.shape[-1] // scale.shape[-1]
    points = half if zeros is None else _unpacked(zeros.mT, bits).mT.repeat_interleave(group, -1)
    return (levels - points).float() * scale.float().repeat_interleave(group, -1)


def _unpacked(words: torch.Tensor, bits: int) -> torch.Tensor:
    """Unpack int32 words into ``[..., values]``, the first value from a word's low bits."""
    return torch.stack([(words >> (bits * place)) & ((1 << bits) - 1) for place in range(32 // bits)], dim=-1).flatten(-2)


def through_float8(values: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Round ``values`` to float8 with this scale and return them in float32; larger magnitudes are clamped."""
    levels = (values.float() / scale).clamp(-FLOAT8_MOST, FLOAT8_MOST).to(FLOAT8)
    return levels.float() * scale


def by_group(values: torch.Tensor, group: int) -> torch.Tensor:
    """Round ``values`` through float8 with one scale per ``group`` of the last dimension; 0: one for all of it.

    A scale maps a group's largest magnitude to float8's largest value. So with 0, activations ``[tokens, width]``
    have one scale per token, and weights ``[outputs, inputs]`` one per output.
    """
    parts = values.float().unflatten(-1, (-1, group or values.shape[-1]))
    scale = (parts.abs().amax(-1, keepdim=True) / FLOAT8_MOST).clamp(min=1e-12)
    return through_float8(parts, scale).flatten(-2)
