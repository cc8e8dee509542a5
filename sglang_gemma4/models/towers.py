"""Serving text only (``--language-model-only``): towers, or a 12B's projections, are neither built nor loaded."""

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from sglang.srt.runtime_context import get_disagg

logger = logging.getLogger(__name__)

PARTS = ("vision_tower.", "embed_vision.", "audio_tower.", "embed_audio.", "vision_embedder.")


def leave_out(original: Callable[..., None], module: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
    """Around ``__init__`` of the towers and their embedders: build no parameters if the operator serves text only."""
    if get_disagg().language_model_only:
        torch.nn.Module.__init__(module)
    else:
        original(module, *args, **kwargs)


def skip_towers(model: Any, weights: Iterable[tuple[str, torch.Tensor]]) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Before ``load_weights`` of a Gemma 4 for conditional generation: skip the towers' tensors unread."""
    return ((model, without(weights)), {}) if get_disagg().language_model_only else None


def without(weights: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
    """A checkpoint's tensors without those of the towers and their embedders; the log says how much was left out."""
    tensors = size = 0
    for name, tensor in weights:
        if name.removeprefix("model.").startswith(PARTS):
            tensors, size = tensors + 1, size + tensor.nbytes
        else:
            yield name, tensor
    logger.info("sglang-gemma4: --language-model-only: %d tensors of the towers left out, %.1f MiB", tensors, size / 2**20)


def name_the_flag(problem: str | None, *_args: Any) -> str | None:
    """After ``OpenAIServingChat._validate_media_content``: the error names the flag, as that of ``/generate`` does."""
    if problem is None or not get_disagg().language_model_only:
        return problem
    return f"{problem} This server runs with --language-model-only, without vision and audio towers; it takes images when started without."
