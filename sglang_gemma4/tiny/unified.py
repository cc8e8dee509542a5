"""A tiny 12B: Gemma 4 unified with random weights, written as transformers saves it.

It has what distinguishes the unified model: raw patches and waveforms projected without towers, 8 KV heads on sliding
layers, one on full ones and K = V there, bidirectional attention in images. Nothing is trained, but text, images and
audio change its logits.
"""

from pathlib import Path
from typing import Any

from sglang_gemma4.tiny import checkpoints, export, families, sounds, spread_weights, tokenizer

NAME = "tiny-12b"
SAMPLES = sounds.FRAME
"""Samples of a waveform per soft token, 40 ms, as in the released model's feature extractor."""


def _without_per_layer(text: dict[str, Any]) -> dict[str, Any]:
    """The text config without per-layer embeddings, which a unified model does not have."""
    return {name: value for name, value in text.items() if "per_layer_input" not in name}


TEXT: dict[str, Any] = _without_per_layer(families.TEXT[NAME])
VISION = {
    "patch_size": families.PATCH,
    "pooling_kernel_size": families.POOL,
    "mm_embed_dim": 96,
    "mm_posemb_size": 128,
    "output_proj_dims": 96,
}


def build(tokens: dict[str, int], seed: int = 0) -> Any:
    """Build a ``Gemma4UnifiedForConditionalGeneration`` in float32; ``tokens`` as ``export.special_ids`` gives them."""
    from transformers.models.gemma4_unified import modeling_gemma4_unified as modeling
    from transformers.models.gemma4_unified.configuration_gemma4_unified import (
        Gemma4UnifiedAudioConfig,
        Gemma4UnifiedConfig,
        Gemma4UnifiedTextConfig,
        Gemma4UnifiedVisionConfig,
    )

    config = Gemma4UnifiedConfig(
        text_config=Gemma4UnifiedTextConfig(**TEXT),
        vision_config=Gemma4UnifiedVisionConfig(**VISION),
        audio_config=Gemma4UnifiedAudioConfig(audio_embed_dim=SAMPLES),
        tie_word_embeddings=True,
        **{name: token for name, token in tokens.items() if name != "eoa_token_id"},
    )
    model = modeling.Gemma4UnifiedForConditionalGeneration(config).eval()
    spread_weights.fill(model, seed)
    spread_weights.roughen(model, seed)
    return model


def build_assistant(seed: int = 0) -> Any:
    """Build a ``Gemma4UnifiedAssistantForCausalLM`` in float32 that fits :func:`build`; its drafts are accepted only by chance."""
    from transformers.models.gemma4_unified.configuration_gemma4_unified import Gemma4UnifiedTextConfig
    from transformers.models.gemma4_unified_assistant.configuration_gemma4_unified_assistant import Gemma4UnifiedAssistantConfig
    from transformers.models.gemma4_unified_assistant.modeling_gemma4_unified_assistant import Gemma4UnifiedAssistantForCausalLM

    text = Gemma4UnifiedTextConfig(**_without_per_layer(families.assistant_text(NAME)))
    config = Gemma4UnifiedAssistantConfig(text_config=text, **families.assistant(NAME))
    model = Gemma4UnifiedAssistantForCausalLM(config).eval()
    spread_weights.fill(model, seed)
    return model


def parts() -> tuple[Any, Any, Any, Any]:
    """The unified processor's class and parts, for :func:`export.save_target`."""
    from transformers.models.gemma4_unified.feature_extraction_gemma4_unified import Gemma4UnifiedAudioFeatureExtractor
    from transformers.models.gemma4_unified.image_processing_gemma4_unified import Gemma4UnifiedImageProcessor
    from transformers.models.gemma4_unified.processing_gemma4_unified import Gemma4UnifiedProcessor
    from transformers.models.gemma4_unified.video_processing_gemma4_unified import Gemma4UnifiedVideoProcessor

    image, video = Gemma4UnifiedImageProcessor(**families.IMAGE), Gemma4UnifiedVideoProcessor(**families.IMAGE)
    sound = Gemma4UnifiedAudioFeatureExtractor(feature_size=SAMPLES, audio_samples_per_token=SAMPLES)
    return Gemma4UnifiedProcessor, image, video, sound


def write(path: Path, seed: int = 0) -> Path:
    """Write the checkpoint to ``path``, with the tiny families' tokenizer, and its assistant to ``PATH-assistant``."""
    import torch

    raw = tokenizer.load_raw(checkpoints.SHIPPED / "tiny-e2b")
    save(build(export.special_ids(raw), seed), raw, path)
    build_assistant(seed).to(torch.bfloat16).save_pretrained(path.with_name(f"{path.name}-assistant"))
    return path


def save(model: Any, raw: Any, path: Path) -> None:
    """Write a unified target as :func:`export.save_target` does."""
    never = [model.config.eoi_token_id, model.config.eoa_token_index]  # as in the released file; SGLang's class always suppresses them
    export.save_target(model, raw, path, parts, suppress_tokens=never)
