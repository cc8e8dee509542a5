"""Writing a trained target or assistant as transformers saves it: bfloat16 safetensors, tokenizer, processor, generation config."""

import json
from pathlib import Path
from typing import Any

from sglang_gemma4.tiny import batches, families
from sglang_gemma4.tiny import tokenizer as tiny_tokenizer


def special_ids(raw: Any) -> dict[str, int]:
    """The token ids that Gemma4Config names; SGLang's processor reads `eoa_token_id`, transformers declares `eoa_token_index`."""
    names = {
        "image_token_id": "<|image|>",
        "boi_token_id": "<|image>",
        "eoi_token_id": "<image|>",
        "audio_token_id": "<|audio|>",
        "boa_token_id": "<|audio>",
        "eoa_token_id": "<audio|>",
        "eoa_token_index": "<audio|>",
        "video_token_id": "<|video|>",
    }
    return {key: raw.token_to_id(token) for key, token in names.items()}


def stop_ids(raw: Any) -> list[int]:
    """What ends generation: <eos>, a turn's end, and a tool response, which the caller must supply."""
    return [families.EOS, raw.token_to_id("<turn|>"), raw.token_to_id("<|tool_response>")]


def _generation_config(raw: Any, **more: Any) -> Any:
    from transformers import GenerationConfig

    return GenerationConfig(bos_token_id=families.BOS, pad_token_id=families.PAD, eos_token_id=stop_ids(raw), do_sample=False, **more)


def save_target(model: Any, raw: Any, path: Path) -> None:
    """The whole directory that AutoProcessor, AutoModelForImageTextToText and SGLang load."""
    import torch
    from transformers import Gemma4Processor
    from transformers.models.gemma4.feature_extraction_gemma4 import Gemma4AudioFeatureExtractor
    from transformers.models.gemma4.video_processing_gemma4 import Gemma4VideoProcessor

    model.generation_config = _generation_config(raw)
    model.to("cpu", torch.bfloat16).save_pretrained(path)
    tokenizer = tiny_tokenizer.fast_tokenizer(raw)
    processor = Gemma4Processor(
        feature_extractor=Gemma4AudioFeatureExtractor(),
        image_processor=batches.image_processor(),
        tokenizer=tokenizer,
        video_processor=Gemma4VideoProcessor(**families.IMAGE),
        chat_template=tokenizer.chat_template,
        image_seq_length=families.MAX_SOFT_TOKENS,
    )
    processor.save_pretrained(path)


def save_assistant(model: Any, raw: Any, path: Path) -> None:
    """The assistant's directory, with the same tokenizer."""
    import torch

    model.generation_config = _generation_config(raw, num_assistant_tokens=families.DRAFT_STEPS, num_assistant_tokens_schedule="constant")
    model.to("cpu", torch.bfloat16).save_pretrained(path)
    tiny_tokenizer.fast_tokenizer(raw).save_pretrained(path)


def size_of(path: Path) -> int:
    """Bytes of all files below `path`."""
    return sum(f.stat().st_size for f in path.rglob("*") if f.is_file())


def write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")
