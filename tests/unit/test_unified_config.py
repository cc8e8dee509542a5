"""A 12B's configuration in SGLang's terms: what transformers leaves out is filled, what a file states stands."""

import pickle
from typing import Any

import pytest

from sglang_gemma4.models.unified_config import UnifiedConfig

TEXT: dict[str, Any] = {"hidden_size": 128, "num_hidden_layers": 6, "num_key_value_heads": 8, "num_global_key_value_heads": 1}
SAVED = {
    "vision_config": {"patch_size": 4, "pooling_kernel_size": 3, "mm_embed_dim": 96, "mm_posemb_size": 128, "output_proj_dims": 96},
    "audio_config": {"audio_embed_dim": 320},
}
RELEASED = {
    "vision_config": {**SAVED["vision_config"], "model_patch_size": 12, "num_soft_tokens": 280},
    "audio_config": {"audio_embed_dim": 320, "hidden_size": 320, "output_proj_dims": 320, "audio_samples_per_token": 320},
}


@pytest.mark.parametrize("parts", [SAVED, RELEASED], ids=["saved", "released"])
def test_what_follows_from_other_fields_is_there(parts: dict[str, Any]) -> None:
    made = UnifiedConfig(text_config=dict(TEXT), **{name: dict(part) for name, part in parts.items()})
    vision, audio = made.vision_config, made.audio_config
    assert (vision.model_patch_size, vision.mm_embed_dim, vision.mm_posemb_size, vision.output_proj_dims) == (12, 96, 128, 96)
    assert (audio.audio_embed_dim, audio.hidden_size, audio.output_proj_dims, audio.audio_samples_per_token) == (320,) * 4


def test_a_text_config_has_the_unified_defaults() -> None:
    text = UnifiedConfig(text_config=dict(TEXT)).text_config
    assert (text.hidden_size_per_layer_input, text.sliding_window, text.use_bidirectional_attention) == (0, 1024, "vision")
    assert not text.enable_moe_block
    given = UnifiedConfig(text_config={**TEXT, "sliding_window": 64, "use_bidirectional_attention": None}).text_config
    assert (given.sliding_window, given.use_bidirectional_attention) == (64, None)


def test_a_part_that_is_not_there_stays_so() -> None:
    made = UnifiedConfig(text_config=dict(TEXT))
    assert made.vision_config is None
    assert made.audio_config is None


def test_it_travels_between_processes() -> None:
    made = pickle.loads(pickle.dumps(UnifiedConfig(text_config=dict(TEXT), **SAVED)))
    assert made.model_type == "gemma4_unified"
    assert made.vision_config.model_patch_size == 12
