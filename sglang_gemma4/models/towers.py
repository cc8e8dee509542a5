"""Loading a checkpoint without its vision and audio towers."""

import logging
from collections.abc import Iterable, Iterator

import torch

logger = logging.getLogger(__name__)

PARTS = ("vision_tower.", "embed_vision.", "audio_tower.", "embed_audio.")


def without(weights: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
    """A checkpoint's tensors without those of the towers and their embedders; the log says how much was left out."""
    tensors = size = 0
    for name, tensor in weights:
        if name.removeprefix("model.").startswith(PARTS):
            tensors, size = tensors + 1, size + tensor.nbytes
        else:
            yield name, tensor
    logger.info("sglang-gemma4: --language-model-only: %d tensors of the towers left out, %.1f MiB", tensors, size / 2**20)
