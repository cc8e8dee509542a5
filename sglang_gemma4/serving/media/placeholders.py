"""Compares features with a prompt's placeholders: the scheduler assumes one row for each placeholder, and ends if that is wrong."""

from collections.abc import Mapping
from typing import Any

import torch
from sglang.srt.multimodal.transport.cuda_ipc import CudaIpcTensorTransportProxy

from sglang_gemma4.serving.media import identity


def judge(output: Any, brought: Mapping[str, int | None], config: Any) -> None:
    """Compare a processor's output with the media that the request brought.

    Args:
        output: SGLang's ``MultimodalProcessorOutput``: ``input_ids`` and ``mm_items``.
        brought: number of media by modality, "image" and "audio"; None if features came in their place.
        config: transformers' config of the whole model.

    Raises:
        ValueError: media without placeholders, placeholders without media, features of a wrong shape, or NaN or infinite features.
    """
    for kind, number in brought.items():
        spans = [span for item in output.mm_items if item.modality.name.lower() == kind for span in item.offsets or ()]
        if len(spans) != number and (number is not None or not spans):
            raise ValueError(
                f"{kind}_data: the request brings {'features' if number is None else number} and its prompt has places for {len(spans)}; "
                f"write one <|{kind}|> for each, apart from the next and from the prompt's ends, and send none shorter than a token"
            )
    if None in brought.values() and any(not 0 <= one < config.text_config.vocab_size for one in output.input_ids):
        raise ValueError(f"input_ids: features came with token ids outside of the vocabulary of {config.text_config.vocab_size}")
    for item in output.mm_items:
        _judge_item(item, output.input_ids, config)
        identity.describe(item)


def _judge_item(item: Any, ids: list[int], config: Any) -> None:
    kind = item.modality.name.lower()
    token = getattr(config, f"{kind}_token_id")
    places = 0
    for start, end in item.offsets or ():
        if not 0 <= start <= end < len(ids) or ids[start : end + 1].count(token) != end - start + 1:
            raise ValueError(f"{kind}_data: tokens {start} to {end} of a prompt of {len(ids)} are not all <|{kind}|>, whose id is {token}")
        places += end - start + 1
    if item.pad_value is not None and item.pad_value < config.text_config.vocab_size:
        raise ValueError(f"{kind}_data: pad_value {item.pad_value} is a token of the vocabulary; leave it out")
    rows = _rows(item, kind, config)
    if rows != places or not rows:
        raise ValueError(f"{kind}_data: the features are {rows} rows and the prompt has {places} <|{kind}|>; both numbers must be equal")
    if kind == "audio" or item.format.name != "NORMAL":  # pixels that were decoded here are finite
        for feature in _tensors(_feature(item)):
            if feature.is_floating_point() and not feature.is_meta and not bool(torch.isfinite(feature).all()):
                raise ValueError(f"{kind}_data: the features hold values that are infinite or no numbers")


def _feature(item: Any) -> Any:
    return item.feature if item.feature is not None else item.precomputed_embeddings


def _tensors(value: Any) -> list[torch.Tensor]:
    """The tensors of a feature, which SGLang stores as one tensor, a list, or lists of lists.

    Pixels that wait on a GPU for the scheduler (SGLang's CUDA IPC) are returned as a meta tensor of the same shape.
    """
    if isinstance(value, list | tuple):
        return [tensor for one in value for tensor in _tensors(one)]
    if isinstance(value, CudaIpcTensorTransportProxy):
        there = value.proxy_state["ipc_extra"]
        return [torch.empty(there["recons_shape"], dtype=there["recons_dtype"], device="meta")]
    if not isinstance(value, torch.Tensor):
        raise ValueError(f"features must be tensors, not {type(value).__name__}")
    return [value]


def _rows(item: Any, kind: str, config: Any) -> int:
    """Number of rows that the model's tower makes of an item, or that its embeddings have."""
    features, hidden = _tensors(_feature(item)), config.text_config.hidden_size
    if any(feature.dim() < 2 for feature in features):
        raise ValueError(f"{kind}_data: features of shape {[list(feature.shape) for feature in features]}; they must have rows and columns")
    embeddings = item.precomputed_embeddings is not None or (kind != "audio" and all(feature.shape[-1] == hidden for feature in features))
    if embeddings or (kind != "audio" and item.format.name == "PRECOMPUTED_EMBEDDING"):
        _has_columns(features, hidden, kind)
        return sum(feature.numel() // hidden for feature in features)
    unified = "Unified" in type(config).__name__
    if kind == "audio":
        return sum(
            int((mask if unified else mask[..., ::2][..., ::2]).sum()) for mask in _beside(features, item, "input_features_mask", kind)
        )
    positions = _beside(features, item, f"{kind}_position_ids", kind)
    sides = [size for one in positions for size in (one.flatten(0, -2).amax(0) + 1).tolist()]
    vision = config.vision_config
    if unified:
        return sum(int((one != -1).all(-1).sum()) for one in positions)
    _has_columns(features, 3 * vision.patch_size**2, kind)
    if not 0 < max(sides) <= vision.position_embedding_size:
        raise ValueError(
            f"{kind}_data: patches in rows and columns of {sides}; the tower has {vision.position_embedding_size} positions; send an "
            "image with a less extreme aspect ratio, or ask for fewer soft tokens"
        )
    return sum(int((one >= 0).all(-1).sum()) for one in positions) // int(vision.pooling_kernel_size) ** 2


def _has_columns(features: list[torch.Tensor], columns: int, kind: str) -> None:
    if any(feature.shape[-1] != columns for feature in features):
        raise ValueError(f"{kind}_data: features of {[one.shape[-1] for one in features]} columns; this model takes {columns}")


def _beside(features: list[torch.Tensor], item: Any, name: str, kind: str) -> list[torch.Tensor]:
    """Tensor ``name`` of features of shape [..., rows, columns]: a mask of shape [..., rows], or positions of shape [..., rows, 2]."""
    if item.model_specific_data.get(name) is None:
        raise ValueError(f"{kind}_data: features without {name}")
    found = _tensors(item.model_specific_data[name])
    shapes = [(list(one.shape[:-1]), list(other.shape)) for one, other in zip(features, found, strict=False)]
    if len(features) != len(found) or any(other[: len(one)] != one for one, other in shapes):
        raise ValueError(
            f"{kind}_data: features of shapes {[list(one.shape) for one in features]}, {name} of {[list(one.shape) for one in found]}"
        )
    return found
