"""Top-k, top-p and the seeded hash, as computed by SGLang's CUDA kernels."""

import torch


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
    from sglang.srt.sampling.watermarking import core  # the same hash in torch

    return core._watermark_hash32_torch(seed.view(torch.int64), positions.long(), columns.long()).to(torch.uint32)
