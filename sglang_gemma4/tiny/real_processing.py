"""Tokenizer and processor files for a config-only checkpoint of a real size, so that its server takes text and images.

The real vocabulary may not be shipped, so the tiny models' tokenizer is used. Its control tokens get the ids of the
released config.json files and its other tokens keep their low ids. The rest of the 262,144 ids decode to "w" and
their number, because SGLang streams text: a client could not time tokens without text.
"""

import functools
import json
from pathlib import Path
from typing import Any

from sglang_gemma4.tiny import real_sizes
from sglang_gemma4.tiny.tokenizer import MEDIA_TOKENS

SOFT_TOKENS, PATCH_SIZE = 280, 16  # a released image takes at most this many tokens, from patches of this many pixels

# Control tokens whose ids are in the released config.json and generation_config.json.
REAL_IDS = {
    **{token: real_sizes.TOKENS[name] for name, token in MEDIA_TOKENS.items()},
    "<turn|>": real_sizes.GENERATION["eos_token_id"][1],
    "<|tool_response>": real_sizes.GENERATION["eos_token_id"][2],
}


def files(name: str, tiny: Path) -> dict[str, Any]:
    """Files by name of a config-only checkpoint of size ``name``; tokenizer and processor come from the tiny checkpoint in ``tiny``."""
    settings = json.loads((tiny / "tokenizer_config.json").read_text())
    config = real_sizes.target(name)
    text = config["text_config"]
    settings["model_max_length"] = text["max_position_embeddings"]
    return {
        "config.json": as_json(config),
        "generation_config.json": as_json(real_sizes.generation(name)),
        "tokenizer.json": _tokenizer(tiny / "tokenizer.json", text["vocab_size"]),
        "tokenizer_config.json": as_json(settings),
        "chat_template.jinja": tiny / "chat_template.jinja",
        "processor_config.json": as_json(_processor(json.loads((tiny / "processor_config.json").read_text()), config)),
    }


@functools.cache
def _tokenizer(path: Path, vocabulary_size: int) -> bytes:
    """The tokenizer.json. Cached, because it depends only on the vocabulary size and takes more than a second."""
    return as_json(_with_real_ids(json.loads(path.read_text()), vocabulary_size))


def _with_real_ids(tokenizer: dict[str, Any], vocabulary_size: int) -> dict[str, Any]:
    """Give the control tokens their real ids; a displaced token gets the id that became free."""
    vocabulary: dict[str, int] = tokenizer["model"]["vocab"]
    for token, wanted in REAL_IDS.items():
        displaced = next((other for other, number in vocabulary.items() if number == wanted), token)
        vocabulary[displaced], vocabulary[token] = vocabulary[token], wanted
    for added in tokenizer["added_tokens"]:
        added["id"] = vocabulary[added["content"]]
    free = set(range(vocabulary_size)) - set(vocabulary.values())
    vocabulary |= {f"▁w{number}": number for number in sorted(free)}
    tokenizer["added_tokens"].sort(key=lambda added: added["id"])
    return tokenizer


def _processor(config: dict[str, Any], model: dict[str, Any]) -> dict[str, Any]:
    """The tiny processor's ``config`` with a released image's sizes; a unified ``model`` gets its own classes, with waveforms as audio."""
    for part in ("image_processor", "video_processor"):
        config[part] |= {"max_soft_tokens": SOFT_TOKENS, "patch_size": PATCH_SIZE}
    config["image_seq_length"] = SOFT_TOKENS
    if model["model_type"] == "gemma4_unified":
        samples = model["audio_config"]["audio_samples_per_token"]
        same = ("padding_side", "padding_value", "return_attention_mask", "sampling_rate")
        config["feature_extractor"] = {
            "feature_extractor_type": "Gemma4UnifiedAudioFeatureExtractor",
            "feature_size": samples,
            "audio_samples_per_token": samples,
            **{name: config["feature_extractor"][name] for name in same},
        }
        config["image_processor"]["image_processor_type"] = "Gemma4UnifiedImageProcessor"
        config["video_processor"]["video_processor_type"] = "Gemma4UnifiedVideoProcessor"
        config["processor_class"] = "Gemma4UnifiedProcessor"
    return config


def as_json(content: Any) -> bytes:
    """``content`` as the bytes of a JSON file."""
    return (json.dumps(content, indent=1, sort_keys=True) + "\n").encode()
