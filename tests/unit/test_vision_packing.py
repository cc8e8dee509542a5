"""Packing of images for the vision tower: sizes from positions, orders, chunks, and what is left to SGLang."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("sglang.srt.layers.attention.vision")
from sglang_gemma4.models import vision

MODEL: Any = SimpleNamespace(
    config=SimpleNamespace(text_config=SimpleNamespace(hidden_size=128)), vision_tower=SimpleNamespace(pooling_kernel_size=3)
)


def padded(width: int, height: int, patches: int) -> torch.Tensor:
    positions = torch.full((patches, 2), -1)
    positions[: width * height] = vision.grid(width, height)
    return positions


def test_sizes_come_from_positions() -> None:
    assert vision.grid_size(padded(6, 9, 60), 3) == (6, 9)
    assert vision.grid_size(padded(6, 9, 54), 3) == (6, 9)


@pytest.mark.parametrize(
    ("positions", "said"),
    [
        (padded(4, 9, 40), "4 x 9 patches does not pool by 3 x 3"),
        (torch.full((9, 2), -1), "0 x 0 patches does not pool"),
        (padded(3, 6, 20).flip(0), "not all of its rows"),
        (padded(6, 3, 18)[torch.randperm(18, generator=torch.Generator().manual_seed(0))], "not all of its rows"),
    ],
    ids=["kernel", "empty", "padding first", "another order"],
)
def test_no_grid_is_named(positions: torch.Tensor, said: str) -> None:
    reason = vision.grid_size(positions, 3)
    assert isinstance(reason, str)
    assert said in reason


def item(feature: Any, positions: Any) -> Any:
    return SimpleNamespace(feature=feature, image_position_ids=positions)


@pytest.mark.parametrize(
    ("feature", "positions", "said"),
    [
        (torch.zeros(1, 9, 48), None, "no image_position_ids"),
        (torch.zeros(1, 9, 128), torch.zeros(1, 9, 2), "embeddings, not pixels"),
        (torch.zeros(1, 9, 48), torch.zeros(1, 8, 2), "disagree"),
    ],
)
def test_what_is_left_to_sglang_is_named(feature: torch.Tensor, positions: Any, said: str) -> None:
    reason = vision.collect(MODEL, [item(feature, positions)], "image_position_ids")
    assert isinstance(reason, str)
    assert said in reason


def test_items_are_taken_in_order_without_padding() -> None:
    sizes = [(3, 3), (6, 3), (9, 6)]
    pixels = torch.arange(3.0)[:, None, None].expand(3, 60, 48)
    positions = torch.stack([padded(*size, 60) for size in sizes])
    two = item([pixels[:1], pixels[1:2]], [positions[:1], positions[1:2]])
    found = vision.collect(MODEL, [two, item(pixels[2], positions[2])], "image_position_ids")
    assert not isinstance(found, str)
    assert [(one.width, one.height) for one in found] == sizes
    assert [one.pixels.shape[0] for one in found] == [9, 18, 54]
    assert [float(one.pixels.mean()) for one in found] == [0, 1, 2]


def test_a_soft_token_s_patches_follow_one_another() -> None:
    order = vision.pooling_order(6, 3, 3).view(2, 9)
    places = vision.grid(6, 3)[order]
    assert (places // 3).unique(dim=1).shape == (2, 1, 2)
    assert sorted(order.flatten().tolist()) == list(range(18))


def test_chunks_hold_similar_sizes_and_a_bounded_number_of_patches() -> None:
    pictures = [vision.Picture(torch.empty(0), *size) for size in ((48, 48), (3, 3), (48, 48), (12, 9), (3, 3), (90, 90))]
    found = vision.chunks(pictures, 4700)
    assert found == [[1, 4, 3, 0], [2], [5]], "of 2430, 2304 and 8100 patches"
    assert vision.chunks(pictures, 0) == [[1], [4], [3], [0], [2], [5]]


def test_neighbours_of_one_length_attend_as_one_batch() -> None:
    torch.manual_seed(0)
    lengths = [3, 5, 5, 2]
    q, k, v = (torch.randn(15, 2, 16) for _ in range(3))
    found = vision.image_by_image(q, k, v, lengths, 1.0)
    for first, length in zip((0, 3, 8, 13), lengths, strict=True):
        rows = slice(first, first + length)
        scores = torch.einsum("qhd,khd->hqk", q[rows], k[rows]).softmax(-1)
        torch.testing.assert_close(found[rows], torch.einsum("hqk,khd->qhd", scores, v[rows]))


def test_a_backend_that_drops_masks_is_replaced_within_a_pack_alone() -> None:
    class Other:
        def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **_: Any) -> torch.Tensor:
            return torch.zeros_like(q)

    backends = [Other(), Other()]
    layers = [SimpleNamespace(self_attn=SimpleNamespace(qkv_backend=backend)) for backend in backends]
    tower = SimpleNamespace(encoder=SimpleNamespace(layers=layers))
    q, k, v = torch.randn(3, 9, 2, 16).unbind()
    with vision.packed(tower, [4, 5], torch.device("cpu")):
        for backend in backends:
            found = backend.forward(q=q, k=k, v=v, softmax_scale=1.0)
            torch.testing.assert_close(found, vision.image_by_image(q, k, v, [4, 5], 1.0))
    assert not backends[0].forward(q=q, k=k, v=v).any()


OF_PATCH = 2 * (14 * 2 * 4 + 6 * 16 + 8 * 8) + 12 * 48 + 8 * 8 + 16 * 4
"""Bytes of a patch in bfloat16: two heads of 4, an FFN of 16, a width of 8, 48 pixel values."""


def tower_of(heads: int) -> Any:
    """``heads`` of two on this rank."""
    attention = SimpleNamespace(num_heads_per_partition=heads, head_dim=4)
    return SimpleNamespace(
        encoder=SimpleNamespace(layers=[SimpleNamespace(self_attn=attention)]),
        config=SimpleNamespace(num_attention_heads=2, intermediate_size=16, hidden_size=8),
        patch_embedder=SimpleNamespace(input_proj=torch.nn.Linear(1, 1, dtype=torch.bfloat16)),
    )


@pytest.mark.parametrize(
    ("free", "reserved", "patches"),
    [(200, 0, 100), (200, 30, 115), (0, 8, 4), (1, 0, 0), (2 << 20, 0, vision.MOST_PATCHES)],
    ids=["free", "free and cached", "cached", "full card", "much"],
)
def test_a_call_s_patches_take_half_of_the_card_s_free_memory(
    free: int, reserved: int, patches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Free of the card, and free in the allocator's cache (here 1,000 bytes of it are in use), both as patches."""
    card = torch.device("cuda", 3)
    asked: list[torch.device] = []

    def told(value: Any) -> Any:
        def answer(device: torch.device) -> Any:
            asked.append(device)
            return value

        return answer

    monkeypatch.setattr(torch.cuda, "mem_get_info", told((free * OF_PATCH, 80 << 30)))
    monkeypatch.setattr(torch.cuda, "memory_reserved", told(reserved * OF_PATCH + 1000))
    monkeypatch.setattr(torch.cuda, "memory_allocated", told(1000))
    assert vision.most_patches(tower_of(2), 48, card) == patches
    assert asked == [card] * 3


def test_ranks_that_share_a_tower_cut_the_same_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    def unasked(_: Any) -> Any:
        raise AssertionError("free memory differs from rank to rank")

    monkeypatch.setattr(vision, "MOST_PATCHES", 1 << 40)
    monkeypatch.setattr(torch.cuda, "mem_get_info", unasked)
    of_patch = OF_PATCH - 2 * 14 * 4  # one head fewer
    assert vision.most_patches(tower_of(1), 48, torch.device("cuda")) == vision.FIXED_BYTES // of_patch
    assert vision.most_patches(tower_of(2), 48, torch.device("cpu")) == vision.FIXED_BYTES // OF_PATCH
