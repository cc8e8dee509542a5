"""Top-k, top-p and the seeded hash, as computed by SGLang's CUDA kernels."""

import torch

MASK = 0xFFFFFFFF


def top_k_renorm(probs: torch.Tensor, top_k: torch.Tensor) -> torch.Tensor:
    """Keep the ``top_k`` [rows] most probable of ``probs`` [rows, vocab] and renormalise."""
    ordered, index = probs.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(probs.shape[-1])
    ordered = ordered.masked_fill(rank >= top_k.view(-1, 1), 0.0)
    return _renormalised(ordered, index)


def top_p_renorm(probs: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Drop the entries for which more probable ones sum to more than ``top_p`` [rows], and renormalise.

    As SGLang's torch sampler (srt/layers/sampler.py, ``top_p_normalize_probs_torch``), but summed in float64.
    """
    ordered, index = probs.sort(dim=-1, descending=True, stable=True)
    before = ordered.double().cumsum(-1) - ordered
    ordered = ordered.masked_fill(before > top_p.view(-1, 1), 0.0)
    return _renormalised(ordered, index)


def _renormalised(ordered: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    ordered = ordered / ordered.sum(-1, keepdim=True)
    return torch.zeros_like(ordered).scatter_(-1, index, ordered)


def murmur_hash32(seed: torch.Tensor, positions: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """MurmurHash3 of (64-bit seed, position, column) as in SGLang's seeded sampling: [rows, columns] uint32.

    Args:
        seed: [rows] uint64
        positions: [rows] integers
        columns: [columns] integers
    """
    bits = seed.view(torch.int64)
    h = torch.zeros(len(bits), 1, dtype=torch.int64)
    h = _mix(h, (bits & MASK)[:, None])
    h = _mix(h, ((bits >> 32) & MASK)[:, None])
    h = _mix(h, (positions.to(torch.int64) & MASK)[:, None])
    h = _mix(h, (columns.to(torch.int64) & MASK)[None, :])
    h = h ^ 16  # bytes hashed
    h = _times(h ^ (h >> 16), 0x85EBCA6B)
    h = _times(h ^ (h >> 13), 0xC2B2AE35)
    return (h ^ (h >> 16)).to(torch.uint32)


def _times(value: torch.Tensor, factor: int) -> torch.Tensor:
    """Product modulo 2**32 of 32-bit values held in int64, without overflow."""
    low, high = value & 0xFFFF, value >> 16
    return (low * factor + (((high * factor) & 0xFFFF) << 16)) & MASK


def _rotate(value: torch.Tensor, by: int) -> torch.Tensor:
    return ((value << by) | (value >> (32 - by))) & MASK


def _mix(h: torch.Tensor, block: torch.Tensor) -> torch.Tensor:
    block = _times(_rotate(_times(block, 0xCC9E2D51), 15), 0x1B873593)
    return (_rotate(h ^ block, 13) * 5 + 0xE6546B64) & MASK
