"""Cache keys of images, videos and audio in SGLang: a hash of the features and of the other tensors that the towers read.

SGLang keys cached features and cached prefixes by a hash of only the features. A wide and a tall image of one colour have the same
patches; only their positions differ. Frame times are tokens of the prompt, so prefixes with other times differ anyway.
"""

import hashlib
from collections.abc import Iterator
from typing import Any

import torch

BESIDE = ("image_position_ids", "video_position_ids", "input_features_mask")
"""Tensors that the model reads in addition to an item's features: positions of patches, and which audio frames are real."""
DIGEST = "beside_digest"
"""Key under which :func:`describe` adds the digest to an item's data, as 64 hexadecimal digits."""


def describe(item: Any) -> None:
    """Add the digest of the tensors :data:`BESIDE` to an item, so that the scheduler need not read tensors on a GPU."""
    found = _digest(item)
    if found is not None:
        item.model_specific_data[DIGEST] = found


def _digest(item: Any) -> str | None:
    """SHA-256 of the tensors named :data:`BESIDE`; None if the item has none, as with precomputed embeddings."""
    present = [name for name in BESIDE if item.model_specific_data.get(name) is not None]
    if not present:
        return None
    hasher = hashlib.sha256()
    for name in present:
        for tensor in _tensors(item.model_specific_data[name]):
            hasher.update(f"{name}{list(tensor.shape)}".encode())
            hasher.update(tensor.detach().cpu().to(torch.int64).contiguous().numpy())
    return hasher.hexdigest()


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, list | tuple) and not all(isinstance(one, int | bool) for one in value):
        for one in value:
            yield from _tensors(one)
    else:
        yield torch.as_tensor(value)


def tell_apart(original: Any, item: Any) -> None:
    """Around ``MultimodalDataItem.set_pad_value``: mix the digest into a hash that SGLang computed; a given hash is unchanged."""
    known = item.pad_value is not None or item.hash is not None
    original(item)
    beside = None if known else item.model_specific_data.get(DIGEST) or _digest(item)
    if beside is not None:
        mixed = hashlib.sha256(item.hash.to_bytes(8, "big") + bytes.fromhex(beside)).digest()
        item.set_hash(int.from_bytes(mixed[:8], "big"))
