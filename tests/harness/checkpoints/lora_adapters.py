"""Adapters made by PEFT on the trained tiny models, and what transformers answers with their weights merged."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tests.harness.oracles import reference

TEXT = r".*language_model\.layers\.\d+\."
"""A regular expression as people who train with PEFT write it: the vision tower has layers of the same names."""
ATTENTION = r"self_attn\.(q|k|v|o)_proj"
FFN = r"mlp\.(gate|up|down)_proj"
PLE = r"per_layer_(input_gate|projection)"
SPREAD = 0.4


@dataclass
class Adapter:
    """A saved adapter and the greedy answers of the merged model."""

    path: Path
    answers: list[list[int]]


def make(model: str, folder: Path, prompts: Sequence[list[int]], tokens: int, seed: int = 0, **config: Any) -> Adapter:
    """As :func:`adapt`, of a model that ships."""
    return adapt(reference.load(model), folder, prompts, tokens, seed, **config)


def adapt(model: Any, folder: Path, prompts: Sequence[list[int]], tokens: int, seed: int = 0, **config: Any) -> Adapter:
    """Random, not zero, on both sides; ``config`` are PEFT's settings. The model is changed."""
    from peft import LoraConfig, get_peft_model

    adapted = get_peft_model(model, LoraConfig(**config))
    torch.manual_seed(seed)
    for name, weight in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=SPREAD)
    adapted.save_pretrained(str(folder))
    merged = adapted.merge_and_unload()
    return Adapter(folder, [reference.greedy(merged, {"input_ids": torch.tensor([prompt])}, tokens) for prompt in prompts])
