"""What is read beside features is a part of what they are cached under, in whichever process and in whichever way they are hashed."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import torch
from sglang.srt.managers.schedule_batch import Modality, MultimodalDataItem, MultimodalInputFormat
from sglang.srt.multimodal.processors.hash_executor import MultimodalHashExecutor

from sglang_gemma4.serving.media import identity

STOCK = MultimodalDataItem.set_pad_value


@pytest.fixture(autouse=True)
def placed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hook of the patch ``request_media``."""
    monkeypatch.setattr(MultimodalDataItem, "set_pad_value", lambda item: identity.tell_apart(STOCK, item))


def places(width: int, height: int) -> torch.Tensor:
    """Positions of an image's patches, with room for 54."""
    found = torch.full((1, 54, 2), -1)
    grid = torch.stack(torch.meshgrid(torch.arange(width), torch.arange(height), indexing="xy"), -1).reshape(-1, 2)
    found[0, : len(grid)] = grid
    return found


def image(width: int, height: int, **changed: Any) -> MultimodalDataItem:
    data = {"image_position_ids": places(width, height)}
    return MultimodalDataItem(**{"modality": Modality.IMAGE, "feature": torch.ones(1, 54, 48), "model_specific_data": data, **changed})


def video(width: int, height: int) -> MultimodalDataItem:
    data = {"video_position_ids": places(width, height)[None].expand(1, 2, 54, 2)}
    return MultimodalDataItem(modality=Modality.VIDEO, feature=torch.ones(1, 2, 54, 48), model_specific_data=data)


def sound(real: int, _: int = 0) -> MultimodalDataItem:
    data = {"input_features_mask": (torch.arange(40) < real)[None]}
    return MultimodalDataItem(modality=Modality.AUDIO, feature=torch.zeros(1, 40, 128), model_specific_data=data)


def in_pieces(width: int, height: int) -> MultimodalDataItem:
    """As a caller of the Engine gives an image, or a splitter leaves it: lists of tensors."""
    return image(width, height, feature=[torch.ones(54, 48)], model_specific_data={"image_position_ids": [places(width, height)[0]]})


def prepared(width: int, height: int) -> MultimodalDataItem:
    return image(width, height, format=MultimodalInputFormat.PROCESSOR_OUTPUT)


def by_itself(item: MultimodalDataItem) -> None:
    item.set_pad_value()


def described(item: MultimodalDataItem) -> None:
    """In the scheduler, behind the tokenizer's process."""
    identity.describe(item)
    for name in identity.BESIDE:
        item.model_specific_data.pop(name, None)
    item.set_pad_value()


def in_a_thread(item: MultimodalDataItem) -> None:
    """SGLANG_MM_PRECOMPUTE_HASH=1."""
    executor = MultimodalHashExecutor()
    asyncio.run(executor.set_pad_values([item]))
    executor.shutdown()


@pytest.mark.parametrize("hashed", [by_itself, described, in_a_thread])
@pytest.mark.parametrize("made", [image, in_pieces, prepared, video, sound])
def test_what_is_read_beside_features_tells_items_apart(made: Callable[..., Any], hashed: Callable[[MultimodalDataItem], None]) -> None:
    one, same, other = made(3, 12), made(3, 12), made(12, 3)
    for item in (one, same, other):
        hashed(item)
    assert (one.hash, one.pad_values) == (same.hash, same.pad_values)
    assert one.hash != other.hash
    assert one.pad_value != other.pad_value
    again = one.hash
    one.set_pad_value()
    assert one.hash == again


def test_each_process_finds_the_same() -> None:
    """One that has the digest, and one that has the tensors, wider or narrower."""
    items = [image(3, 12) for _ in range(3)]
    items[1].model_specific_data["image_position_ids"] = places(3, 12).to(torch.int32)
    described(items[2])
    for item in items:
        item.set_pad_value()
    assert len({item.hash for item in items}) == 1


def test_stock_takes_one_image_for_the_other() -> None:
    one, other = image(3, 12), image(12, 3)
    STOCK(one)
    STOCK(other)
    assert one.hash == other.hash


def test_embeddings_and_given_hashes_stay_as_they_are() -> None:
    """Nothing is read beside embeddings; a hash of the operator's router is agreed upon."""
    ours, stocks = (
        MultimodalDataItem(
            modality=Modality.IMAGE, precomputed_embeddings=torch.ones(4, 32), format=MultimodalInputFormat.PRECOMPUTED_EMBEDDING
        )
        for _ in range(2)
    )
    ours.set_pad_value()
    STOCK(stocks)
    assert ours.hash == stocks.hash
    routed = image(3, 12, hash=7)
    routed.set_pad_value()
    assert routed.hash == 7
