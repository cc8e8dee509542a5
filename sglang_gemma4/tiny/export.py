"""Writes a trained target or assistant as transformers saves it: bfloat16 safetensors, tokenizer, processor, generation config."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sglang_gemma4.tiny import batches, families
from sglang_gemma4.tiny import tokenizer as tiny_tokenizer


def special_ids(raw: Any) -> dict[str, int]:
    """The token ids that Gemma4Config names; SGLang's processor reads `eoa_token_id`, transformers declares `eoa_token_index`."""
    ids = {name: raw.token_to_id(token) for name, token in tiny_tokenizer.MEDIA_TOKENS.items()}
    return {**ids, "eoa_token_index": ids["eoa_token_id"]}


def stop_ids(raw: Any) -> list[int]:
    """Tokens that end generation: <eos>, the end of a turn, and the opening of a tool response, which the caller must supply."""
    return [families.EOS, raw.token_to_id("<turn|>"), raw.token_to_id("<|tool_response>")]


def gemma4_parts() -> tuple[Any, Any, Any, Any]:
    """The processor class and its image, video and audio processors, for :func:`save_target` of the trained families."""
    from transformers import Gemma4Processor
    from transformers.models.gemma4.feature_extraction_gemma4 import Gemma4AudioFeatureExtractor
    from transformers.models.gemma4.video_processing_gemma4 import Gemma4VideoProcessor

    return Gemma4Processor, batches.image_processor(), Gemma4VideoProcessor(**families.IMAGE), Gemma4AudioFeatureExtractor()


def save_target(model: Any, raw: Any, path: Path, parts: Callable[[], tuple[Any, Any, Any, Any]] = gemma4_parts, **generation: Any) -> None:
    """Write the whole directory that AutoProcessor, AutoModelForImageTextToText and SGLang load.

    Args:
        parts: gives the processor's class, and its image, video and audio processors.
        generation: further fields of generation_config.json.
    """
    _save(model, raw, path, **generation)
    kind, image, video, sound = parts()
    tokenizer = tiny_tokenizer.fast_tokenizer(raw, path.name)
    processor = kind(
        feature_extractor=sound,
        image_processor=image,
        tokenizer=tokenizer,
        video_processor=video,
        chat_template=tokenizer.chat_template,
        image_seq_length=families.MAX_SOFT_TOKENS,
    )
    processor.save_pretrained(path)


def save_assistant(model: Any, raw: Any, path: Path) -> None:
    """Write the assistant's directory, with the same tokenizer."""
    _save(model, raw, path, num_assistant_tokens=families.DRAFT_STEPS, num_assistant_tokens_schedule="constant")
    tiny_tokenizer.fast_tokenizer(raw, path.name).save_pretrained(path)


def _save(model: Any, raw: Any, path: Path, **generation: Any) -> None:
    import torch
    from transformers import GenerationConfig

    common = {"bos_token_id": families.BOS, "pad_token_id": families.PAD, "eos_token_id": stop_ids(raw), "do_sample": False}
    model.generation_config = GenerationConfig(**common, **generation)
    model.to("cpu", torch.bfloat16).save_pretrained(path)


def size_of(path: Path) -> int:
    """Bytes of all files below `path`."""
    return sum(f.stat().st_size for f in path.rglob("*") if f.is_file())


def write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")
