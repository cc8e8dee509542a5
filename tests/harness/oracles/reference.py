"""What the engine tests compare with: transformers in float32, on the tiny trained checkpoints."""

import random
from pathlib import Path
from typing import Any

import torch

from sglang_gemma4.tiny import world

CHECKPOINTS = Path(world.__file__).parent / "checkpoints"


def load(name: str) -> Any:
    """The transformers model of a checkpoint in float32, with eager attention."""
    from transformers import AutoModelForImageTextToText

    return AutoModelForImageTextToText.from_pretrained(CHECKPOINTS / name, dtype=torch.float32, attn_implementation="eager").eval()


def text_prompts(name: str, lengths: list[int]) -> list[list[int]]:
    """Prompts of these many tokens cut from the world's passages, each from its own seed."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(CHECKPOINTS / name)
    prompts = []
    for seed, length in enumerate(lengths):
        rng = random.Random(seed)
        ids: list[int] = []
        while len(ids) < length:
            ids += tokenizer(world.passage(rng), add_special_tokens=False)["input_ids"]
        prompts.append([tokenizer.bos_token_id, *ids[: length - 1]])
    return prompts


@torch.no_grad()
def greedy(model: Any, inputs: dict[str, torch.Tensor], max_new_tokens: int) -> list[int]:
    """Greedy continuation of one prompt; an end of text does not stop it."""
    out = model.generate(**inputs, max_new_tokens=max_new_tokens, min_new_tokens=max_new_tokens, do_sample=False, eos_token_id=None)
    answer: list[int] = out[0, inputs["input_ids"].shape[1] :].tolist()
    return answer


def greedy_all(name: str, prompts: list[list[int]], max_new_tokens: int) -> list[list[int]]:
    """Greedy continuations, each prompt on its own."""
    model = load(name)
    return [greedy(model, {"input_ids": torch.tensor([prompt])}, max_new_tokens) for prompt in prompts]
