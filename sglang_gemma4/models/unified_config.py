"""A 12B's configuration (Gemma 4 unified) as transformers 5.19 saves it, in the terms that SGLang's model reads.

SGLang reads it as a ``Gemma4Config``, whose parts have other fields and other defaults. The released file states the values that matter;
transformers leaves out what follows from others and what its unified classes do not have, so a fine-tuned 12B had no ``model_patch_size``
(the start ended), an audio projection of 1536 inputs and per-layer embeddings of width 256, which nothing loads.
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
"""Where ``Gemma4UnifiedTextConfig``, ``…VisionConfig`` and ``…AudioConfig`` differ from the classes that SGLang takes: their defaults."""


def text(given: dict[str, Any]) -> dict[str, Any]:
    """A ``text_config``."""
    return {**TEXT, **given}


def vision(given: dict[str, Any]) -> dict[str, Any]:
    """A ``vision_config``; the patch of a soft token follows from the small ones that it is merged from."""
    filled = {**VISION, **given}
    return {**filled, "model_patch_size": filled["patch_size"] * filled["pooling_kernel_size"]}


def audio(given: dict[str, Any]) -> dict[str, Any]:
    """An ``audio_config``; a frame of samples is a soft token's features as it is."""
    filled = {**AUDIO, **given}
    return {**filled, **dict.fromkeys(("hidden_size", "output_proj_dims", "audio_samples_per_token"), filled["audio_embed_dim"])}


class UnifiedConfig(Gemma4Config):  # type: ignore[misc]
    """SGLang's configuration of type ``gemma4_unified`` that fills what a file leaves out."""

    model_type = "gemma4_unified"

    def __post_init__(self, **kwargs: Any) -> None:
        for name, fill in (("text_config", text), ("vision_config", vision), ("audio_config", audio)):
            given = getattr(self, name)
            if isinstance(given, dict):
                setattr(self, name, fill(given))
        super().__post_init__(**kwargs)
