"""A 12B's configuration (Gemma 4 unified) as transformers 5.19 saves it, in the terms that SGLang's model reads.

SGLang reads it as a ``Gemma4Config``, whose parts have other fields and defaults. The released file states the values
that matter. transformers leaves out those that follow from others or that its unified classes lack. In stock a
fine-tuned 12B therefore lacks ``model_patch_size``, without which the start fails. It also gets an audio projection of
1536 inputs, and per-layer embeddings of width 256 that no weights fill.
"""

from typing import Any

from transformers import Gemma4Config

TEXT = {
    "hidden_size_per_layer_input": 0,
    "max_position_embeddings": 262_144,
    "sliding_window": 1024,
    "use_bidirectional_attention": "vision",
}
VISION = {"patch_size": 16, "pooling_kernel_size": 3, "mm_embed_dim": 3840, "mm_posemb_size": 1120, "output_proj_dims": 3840}
AUDIO = {"audio_embed_dim": 640}
"""Defaults of ``Gemma4UnifiedTextConfig``, ``…VisionConfig`` and ``…AudioConfig``.

Those that differ from the defaults of the classes that SGLang uses.
"""


def text(given: dict[str, Any]) -> dict[str, Any]:
    """A ``text_config`` with the defaults filled in."""
    return {**TEXT, **given}


def vision(given: dict[str, Any]) -> dict[str, Any]:
    """A ``vision_config`` with the defaults filled in; ``model_patch_size`` is the side of a soft token's patch."""
    filled = {**VISION, **given}
    return {**filled, "model_patch_size": filled["patch_size"] * filled["pooling_kernel_size"]}


def audio(given: dict[str, Any]) -> dict[str, Any]:
    """An ``audio_config`` with the defaults filled in; the samples of a frame are a soft token's features."""
    filled = {**AUDIO, **given}
    return {**filled, **dict.fromkeys(("hidden_size", "output_proj_dims", "audio_samples_per_token"), filled["audio_embed_dim"])}


class UnifiedConfig(Gemma4Config):  # type: ignore[misc]
    """SGLang's configuration of type ``gemma4_unified``, with what a file leaves out filled in."""

    model_type = "gemma4_unified"

    def __post_init__(self, **kwargs: Any) -> None:
        for name, fill in (("text_config", text), ("vision_config", vision), ("audio_config", audio)):
            given = getattr(self, name)
            if isinstance(given, dict):
                setattr(self, name, fill(given))
        super().__post_init__(**kwargs)
