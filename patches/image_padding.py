"""Padding patches of an image stay out of its first soft token."""

from typing import Any

from sglang_gemma4.patching import Hook, Patch, uses


def zero_padding_patches(pooler: Any, *_args: Any, **_kwargs: Any) -> None:
    """Before ``Gemma4VisionPooler.forward``: ask for what it already can do, padding patches set to zero before pooling."""
    pooler.mask_pad_before_pool = True


PATCH = Patch(
    switch="SGLANG_GEMMA4_MEDIA_FIXES",
    why="Patches that only fill an image up to its budget are pooled into its first soft token; transformers zeroes them. "
    "On tiny-e2b that token is off by 3.8 where its largest value is 2.7, and greedy tokens change.",
    evidence="srt/models/gemma4_vision.py:484, 534 · transformers modeling_gemma4.py Gemma4VisionPooler",
    remove_when="SGLang's pooler masks padding for Gemma4ForConditionalGeneration too.",
    uses=(uses.images,),
    hooks=(Hook("sglang.srt.models.gemma4_vision.Gemma4VisionPooler.forward", "before", zero_padding_patches, "1cac6537ebe8"),),
)
