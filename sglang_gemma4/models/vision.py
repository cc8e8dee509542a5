"""Encodes Gemma 4's images and video frames in one batch of the vision tower, packed without padding.

SGLang encodes image by image, padded to the processor's budget of patches. Its GPU attention kernels drop the mask, so
padding is attended. Here padding never enters the tower: images of all requests are packed, and attention stays within
each image by its length. All that the host must know (sizes, orders) is computed from the positions before they are
copied to the GPU.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from sglang.srt.layers.attention.vision import (
    VisionFlash3Attention,
    VisionFlash4Attention,
    VisionTritonAttention,
    prepare_vision_attention_metadata,
)

PACKED_BACKENDS = (VisionFlash3Attention, VisionFlash4Attention, VisionTritonAttention)
"""Backends of --mm-attention-backend fa3, fa4 and triton_attn, whose kernels attend within given lengths."""
FIXED_BYTES = 1 << 30
"""Bytes for one call of the tower on a CPU, and on GPUs that share the tower: all ranks must cut the same chunks."""
MOST_PATCHES = 1 << 16
"""Most patches of one call: 28 images of 480 x 480; more do not fill a GPU better."""


@dataclass(frozen=True)
class Picture:
    """An image or a frame: ``pixels`` ``[height * width, patch pixels]`` by rows, without padding.

    ``width`` and ``height`` are in patches.
    """

    pixels: torch.Tensor
    width: int
    height: int

    @property
    def patches(self) -> int:
        """Number of patches."""
        return self.width * self.height


class PackedAttention:
    """A tower layer's attention: within each image inside :func:`packed`, else SGLang's own ``forward``.

    Inside, torch's attention replaces every backend but :data:`PACKED_BACKENDS`: SGLang's others for
    --mm-attention-backend drop the mask of padding or, as flashinfer_cudnn, do not run Gemma 4's tower.
    """

    def __init__(self, backend: Any) -> None:
        self.backend = backend
        self.lengths: Sequence[int] | None = None
        self.metadata: Any = None
        backend.forward = self

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        """``[tokens, heads, head_dim]`` from the same shapes."""
        if self.lengths is not None:
            if not isinstance(self.backend, PACKED_BACKENDS):
                return image_by_image(q, k, v, self.lengths, kwargs["softmax_scale"])
            kwargs |= {"cu_seqlens": self.metadata.cu_seqlens, "forward_metadata": self.metadata, "attention_mask": None}
        out: torch.Tensor = type(self.backend).forward(self.backend, q=q, k=k, v=v, **kwargs)
        return out


def image_by_image(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: Sequence[int], scale: float) -> torch.Tensor:
    """Torch's attention within each image, ``[tokens, heads, head_dim]``; adjacent images of one length are a batch."""
    out, first, number = torch.empty_like(q), 0, 0
    while number < len(lengths):
        length, count = lengths[number], 1
        while number + count < len(lengths) and lengths[number + count] == length:
            count += 1
        rows = slice(first, first + count * length)
        query, key, value = (x[rows].unflatten(0, (count, length)).transpose(1, 2) for x in (q, k, v))
        attended = F.scaled_dot_product_attention(query, key, value, scale=scale, enable_gqa=q.shape[1] != k.shape[1])
        out[rows] = attended.transpose(1, 2).flatten(0, 1)
        first, number = rows.stop, number + count
    return out


def attentions(tower: Any) -> list[PackedAttention]:
    """The attention of each layer of a ``Gemma4VisionEncoder``, made at the first call."""
    backends = [layer.self_attn.qkv_backend for layer in tower.encoder.layers]
    return [
        own if isinstance(own := backend.__dict__.get("forward"), PackedAttention) else PackedAttention(backend) for backend in backends
    ]


@contextmanager
def packed(tower: Any, lengths: Sequence[int], device: torch.device) -> Iterator[None]:
    """Inside, the tower's only row holds images of these lengths (patches), one after the other."""
    starts = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    metadata = prepare_vision_attention_metadata(starts, device, max_seqlen=max(lengths))
    layers = attentions(tower)
    for layer in layers:
        layer.lengths, layer.metadata = lengths, metadata
    try:
        yield
    finally:
        for layer in layers:
            layer.lengths = layer.metadata = None


def collect(model: Any, items: Sequence[Any], positions_name: str) -> list[Picture] | str:
    """The images or frames of SGLang's ``MultimodalDataItem`` s in order, or why they must be left to SGLang.

    Args:
        model: ``Gemma4ForConditionalGeneration``.
        positions_name: ``image_position_ids`` or ``video_position_ids``, ``[..., patches, 2]`` with (x, y), (-1, -1)
        for padding.
    """
    pixels: list[torch.Tensor] = []
    positions: list[torch.Tensor] = []
    for item in items:
        features, places = _flat(item.feature), _flat(getattr(item, positions_name, None))
        if len(places) < len(features) or any(place is None for place in places[: len(features)]):
            return f"an item has no {positions_name}"
        for feature, place in zip(features, places, strict=False):
            if feature.dim() in (2, 3) and feature.shape[-1] == model.config.text_config.hidden_size:
                return "an item holds embeddings, not pixels"
            if feature.shape[:-1] != place.shape[:-1]:
                return f"pixels {tuple(feature.shape)} and positions {tuple(place.shape)} disagree"
            pixels += feature.flatten(0, -3).unbind() if feature.dim() > 2 else [feature]
            positions += place.flatten(0, -3).unbind() if place.dim() > 2 else [place]
    on_host = _to_host(positions)
    found = []
    for patches, place in zip(pixels, on_host, strict=True):
        size = grid_size(place, model.vision_tower.pooling_kernel_size)
        if isinstance(size, str):
            return size
        width, height = size
        found.append(Picture(patches[: width * height], width, height))
    return found


def _flat(value: Any) -> list[Any]:
    return [one for each in value for one in _flat(each)] if isinstance(value, (list, tuple)) else [value]


def _to_host(positions: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    """Positions on the host; those on a GPU come in one copy."""
    if not any(place.is_cuda for place in positions):
        return positions
    on_host: Sequence[torch.Tensor] = torch.cat(list(positions)).cpu().split([place.shape[0] for place in positions])
    return on_host


def grid_size(positions: torch.Tensor, kernel: int) -> tuple[int, int] | str:
    """Width and height in patches of an image, from its positions ``[patches, 2]`` on the host.

    Or why they do not pool into soft tokens.
    """
    real = (positions != -1).any(-1)
    width, height = (int(side) + 1 for side in positions.max(0).values)
    count = width * height
    if width < 1 or height < 1 or width % kernel or height % kernel:
        return f"an image of {width} x {height} patches does not pool by {kernel} x {kernel}"
    if int(real.sum()) != count or not torch.equal(positions[:count].long(), grid(width, height)):
        return "an image's patches are not all of its rows, one after the other"
    return width, height


@lru_cache(maxsize=1024)
def grid(width: int, height: int) -> torch.Tensor:
    """``[height * width, 2]`` int64: (x, y) of the patches by rows."""
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    return torch.stack([x, y], -1).flatten(0, 1)


@lru_cache(maxsize=1024)
def pooling_order(width: int, height: int, kernel: int) -> torch.Tensor:
    """``[height * width]`` int64: the patches of the first soft token, of the second, and so on."""
    numbers = torch.arange(width * height).view(height // kernel, kernel, width // kernel, kernel)
    return numbers.transpose(1, 2).flatten()


def chunks(pictures: Sequence[Picture], most: int) -> list[list[int]]:
    """Indices of the images for each call of the tower.

    A call has images of similar sizes and at most ``most`` patches, unless a single image has more.
    """
    found: list[list[int]] = []
    filled = 0
    for number in sorted(range(len(pictures)), key=lambda n: pictures[n].patches):
        patches = pictures[number].patches
        if not found or filled + patches > most:
            found.append([])
            filled = 0
        found[-1].append(number)
        filled += patches
    return found


def most_patches(tower: Any, patch_pixels: int, device: torch.device) -> int:
    """Most patches of one call of the tower: those that half of the free memory holds.

    A patch counts with its bytes where the tower is widest.
    """
    layer = tower.encoder.layers[0]
    attention = layer.self_attn
    config, element = tower.config, tower.patch_embedder.input_proj.weight.element_size()
    heads = attention.num_heads_per_partition
    shared = heads != config.num_attention_heads
    width = element * (14 * heads * attention.head_dim + 6 * config.intermediate_size + 8 * config.hidden_size)
    of_patch = width + 12 * patch_pixels + 8 * config.hidden_size + 16 * attention.head_dim
    free = FIXED_BYTES
    if device.type == "cuda" and not shared:
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # cached by the allocator, which can reuse it
        free = (torch.cuda.mem_get_info(device)[0] + unused) // 2
    return min(MOST_PATCHES, int(free // of_patch))


def encode(model: Any, pictures: Sequence[Picture]) -> torch.Tensor:
    """``[soft tokens of all images in order, text hidden]`` embeddings.

    The tower is called once for each chunk, the embedder once.
    """
    tower, device = model.vision_tower, model.vision_tower.device
    square = tower.pooling_kernel_size**2
    parts, order = [], []
    for numbers in chunks(pictures, most_patches(tower, pictures[0].pixels.shape[-1], device)):
        parts.append(soft_tokens(tower, [pictures[number] for number in numbers], device))
        order += numbers
    embedded: torch.Tensor = model.embed_vision(inputs_embeds=torch.cat(parts))
    if order == sorted(order):
        return embedded
    pieces = embedded.split([pictures[number].patches // square for number in order])
    by_number = dict(zip(order, pieces, strict=True))
    return torch.cat([by_number[number] for number in range(len(pictures))])


def soft_tokens(tower: Any, pictures: Sequence[Picture], device: torch.device) -> torch.Tensor:
    """The tower's ``[soft tokens, hidden]`` of some images.

    They are pooled, scaled and standardized in float32 as transformers does.
    """
    kernel, embedder = tower.pooling_kernel_size, tower.patch_embedder
    weight, table = embedder.input_proj.weight, embedder.position_embedding_table
    first, orders = 0, []
    for picture in pictures:
        orders.append(pooling_order(picture.width, picture.height, kernel) + first)
        first += picture.patches
    places = torch.cat([grid(picture.width, picture.height) for picture in pictures])
    sent = torch.cat([places.t(), torch.cat(orders)[None]])  # [3, patches]
    x, y, order = (sent.pin_memory() if device.type == "cuda" else sent).to(device, non_blocking=True)
    pixels = torch.cat([picture.pixels.to(device, non_blocking=True) for picture in pictures])
    hidden = embedder.input_proj((2 * (pixels.float() - 0.5)).to(weight.dtype))
    hidden = hidden + (table[0].index_select(0, x) + table[1].index_select(0, y))
    with packed(tower, [picture.patches for picture in pictures], device):
        hidden = tower.encoder(inputs_embeds=hidden[None], attention_mask=None, patch_positions=torch.stack([x, y], -1)[None])[0]
    pooled = hidden.index_select(0, order).unflatten(0, (-1, kernel * kernel)).float().mean(1) * tower.pooler.root_hidden_size
    if tower.standardize:
        pooled = (pooled - tower.std_bias.float()) * tower.std_scale.float()
    return pooled.to(weight.dtype)
