"""SGLang's vision tower beside transformers', in the scheduler's process: ``TEST_INSTRUMENTS=vision_oracle:install``.

The tower has the released models' width, patch size and table of positions, two layers deep, with random weights.
"""

import functools
from types import SimpleNamespace
from typing import Any

LAYERS = 2
SIZES = ((12, 9), (30, 30), (30, 21), (12, 9), (3, 45))
"""Width and height in patches."""
PATCHES = 1008
"""Of an image with its padding: 112 soft tokens. The released 280 make three times the work, in the same code."""


def install() -> None:
    """At the first request with an image, before it is served: one line with the largest errors of both ways to encode."""
    import sglang.srt.models.gemma4_mm as gemma4_mm

    model: Any = gemma4_mm.Gemma4ForConditionalGeneration
    forward = model.forward
    told: list[str] = []

    @functools.wraps(forward)
    def served(self: Any, input_ids: Any, positions: Any, forward_batch: Any, *args: Any, **kwargs: Any) -> Any:
        if not told and forward_batch.contains_image_inputs():
            told.append(compare(self))
            print(told[0], flush=True)
        return forward(self, input_ids, positions, forward_batch, *args, **kwargs)

    model.forward = served


def compare(served: Any) -> str:
    """Encode five images of four sizes, and two frames of a video, by transformers, by SGLang one by one and packed."""
    import torch
    from sglang.srt.layers.attention.vision import VisionFlashInferAttention
    from sglang.srt.models.gemma4_vision import Gemma4VisionEncoder
    from transformers.models.gemma4.configuration_gemma4 import Gemma4VisionConfig
    from transformers.models.gemma4.modeling_gemma4 import Gemma4VisionModel

    from sglang_gemma4.models import vision

    torch.manual_seed(0)
    config = Gemma4VisionConfig(
        hidden_size=1152, intermediate_size=4304, num_attention_heads=16, num_key_value_heads=16, head_dim=72, num_hidden_layers=LAYERS,
        standardize=True,
    )  # fmt: skip
    reference = Gemma4VisionModel(config).eval()
    for name, tensor in [*reference.named_parameters(), *reference.named_buffers()]:
        if name.endswith(("position_embedding_table", "std_bias")):
            tensor.data.normal_(0, 0.5)
        elif name.endswith("std_scale"):
            tensor.data.uniform_(0.5, 1.5)
        elif tensor.dim() > 1:
            tensor.data.normal_(0, tensor.shape[-1] ** -0.5)
        elif name.endswith("weight"):
            tensor.data.uniform_(0.5, 1.5)
    tower = Gemma4VisionEncoder(config)
    copy_weights(reference, tower)
    pixels = torch.rand(len(SIZES), PATCHES, 3 * config.patch_size**2)
    positions = torch.full((len(SIZES), PATCHES, 2), -1)
    for number, (width, height) in enumerate(SIZES):
        positions[number, : width * height] = vision.grid(width, height)
        pixels[number, width * height :] = 0  # as the processor pads
    with torch.no_grad():
        expected = reference(pixel_values=pixels, pixel_position_ids=positions).last_hidden_state
        model = SimpleNamespace(vision_tower=tower, embed_vision=lambda inputs_embeds: inputs_embeds, config=served.config)
        items = [
            SimpleNamespace(feature=pixels[:2], image_position_ids=positions[:2]),
            SimpleNamespace(feature=[pixels[2], pixels[3:]], image_position_ids=[positions[2], positions[3:]]),
        ]
        pictures = vision.collect(model, items, "image_position_ids")
        assert not isinstance(pictures, str), pictures
        packed = vision.encode(model, pictures)
        kept, vision.most_patches = vision.most_patches, lambda *_: 1000  # two calls of the tower
        in_chunks = vision.encode(model, pictures)
        vision.most_patches = kept
        one_by_one = torch.cat([tokens[mask] for p, at in zip(pixels, positions, strict=True) for tokens, mask in [one(tower, p, at)]])
        frames = SimpleNamespace(feature=pixels[None, :2], video_position_ids=positions[None, :2])
        of_video = vision.collect(model, [frames], "video_position_ids")
        assert not isinstance(of_video, str), of_video
        video = vision.encode(model, of_video)
        for layer in tower.encoder.layers:  # a kernel that is not given lengths, which only its type tells: it cannot be made here
            layer.self_attn.qkv_backend = VisionFlashInferAttention.__new__(VisionFlashInferAttention)
            torch.nn.Module.__init__(layer.self_attn.qkv_backend)
        other_backend = vision.encode(model, pictures)
    size = expected.abs().mean()
    errors = {
        "packed": (packed - expected).abs().max() / size,
        "in chunks": (in_chunks - expected).abs().max() / size,
        "other backend": (other_backend - expected).abs().max() / size,
        "video": (video - expected[: len(video)]).abs().max() / size,
        "stock": (one_by_one - expected).abs().max() / size,
    }
    return "TOWERS " + " ".join(f"{name.replace(' ', '_')}={float(error):.2e}" for name, error in errors.items())


def one(tower: Any, pixels: Any, positions: Any) -> Any:
    tokens, mask = tower(pixels[None], positions[None])
    return tokens[0], mask[0]


def copy_weights(reference: Any, tower: Any) -> None:
    """transformers' weights into SGLang's tower, whose projections of q, k and v, and of gate and up, are fused."""
    import torch

    given = dict(reference.named_parameters()) | {name: tensor for name, tensor in reference.named_buffers() if name.startswith("std_")}
    own = dict(tower.named_parameters()) | dict(tower.named_buffers())
    fused = (("qkv.qkv_proj", ("q_proj", "k_proj", "v_proj")), ("gate_up.gate_up_proj", ("gate_proj", "up_proj")))
    left = set(dict(tower.named_parameters()))
    for name, tensor in given.items():
        target = name
        for place, parts in fused:
            if f".{parts[0]}." in name:
                target = name.replace(f"{parts[0]}.linear", place)
                tensor = torch.cat([given[name.replace(parts[0], part)] for part in parts])
            elif any(f".{part}." in name for part in parts):
                target = ""
        if target:
            own[target].data.copy_(tensor)
            left.discard(target)
    assert not left, left
