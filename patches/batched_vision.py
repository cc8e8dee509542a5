"""Images and video frames of a batch go through the vision tower together, without their padding."""

from collections.abc import Callable
from functools import partial
from typing import Any

from sglang_gemma4.patching import Hook, Patch, takes, uses

MODEL = "sglang.srt.models.gemma4_mm.Gemma4ForConditionalGeneration"


def encode(positions: str, original: Callable[..., Any], model: Any, items: Any) -> Any:
    """Around ``get_image_feature`` and ``get_video_feature``; ``positions`` is the attribute of items that has the patches' places."""
    if not items:
        return original(model, items)
    from sglang.srt.runtime_context import get_exec

    from sglang_gemma4.models import vision

    if get_exec().deterministic.enable_deterministic_inference:  # an image's features must not depend on those beside it
        return original(model, items)

    pictures = vision.collect(model, items, positions)
    if isinstance(pictures, str):
        takes("batched_vision", pictures, "SGLang's tower encodes image by image")
        return original(model, items)
    takes("batched_vision", None)
    return vision.encode(model, pictures)


PATCH = Patch(
    switch="SGLANG_GEMMA4_BATCHED_VISION",
    why="Stock calls tower and embedder image by image, waits for the card each time, multiplies with one-hot matrices and lets images "
    "attend to their padding.",
    evidence="srt/models/gemma4_mm.py:467-560 (hs[mask]) · gemma4_vision.py:255 (triton_attn and fa3 drop the mask), :399, :470 (one-hot) "
    "· transformers modeling_gemma4.py Gemma4VisionModel · E2B, 600 images on an H200: 1.96 times stock's throughput, two passes each, "
    "runs/2026-11-22-e2b-images-ttft",
    remove_when="SGLang packs Gemma 4's images into one call of the tower.",
    uses=(uses.images, uses.any_batch),
    hooks=(
        Hook(f"{MODEL}.get_image_feature", "around", partial(encode, "image_position_ids"), "fa5edd5eaf57"),
        Hook(f"{MODEL}.get_video_feature", "around", partial(encode, "video_position_ids"), "7a6fd6342bd3"),
    ),
)
