"""The tiny trained checkpoints that ship with the package, questions that their assistants draft well, and transformers as the oracle."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import engines  # type: ignore[import-not-found]

SYNC_MTP = "sync_mtp"
"""Without it no draft runs on a CPU (``sync_mtp.py``)."""
IMAGE_TEXT = "<bos>What is this <|image|> called?"


def target(family: str | Path = "tiny-e2b") -> Path:
    """The folder of a checkpoint that ships; a folder stays as it is."""
    from sglang_gemma4.tiny import checkpoints

    return family if isinstance(family, Path) else checkpoints.SHIPPED / family


def mtp(family: str = "tiny-e2b") -> dict[str, Any]:
    """Engine arguments: its assistant drafts."""
    return {**engines.MTP, "speculative_draft_model_path": f"{target(family)}-assistant"}


def questions(count: int, seed: int) -> list[list[int]]:
    """Token ids of rendered chats."""
    import random

    from transformers import AutoTokenizer

    from sglang_gemma4.tiny import chat_format, dialogues

    rng, tokenizer = random.Random(seed), AutoTokenizer.from_pretrained(target())
    texts = [chat_format.render(dialogues.chat(rng, "held_out", turns=1), prompt_only=True) for _ in range(count)]
    return [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]


def load(family: str | Path = "tiny-e2b") -> Any:
    """The transformers model in float32."""
    import torch
    from transformers import AutoModelForImageTextToText

    return AutoModelForImageTextToText.from_pretrained(target(family), dtype=torch.float32, attn_implementation="eager").eval()


def greedy(
    model: Any, prompts: Sequence[list[int]], tokens: int, penalise: Callable[[Any, list[int]], None] | None = None
) -> list[list[int]]:
    """transformers' greedy continuations; ``penalise`` changes the logits of one row, [vocabulary], given the answer so far."""
    import torch

    answers = []
    for prompt in prompts:
        answer: list[int] = []
        cache, ids = None, prompt
        for _ in range(tokens):
            with torch.inference_mode():
                done = model(input_ids=torch.tensor([ids]), past_key_values=cache, use_cache=True)
            scores, cache = done.logits[0, -1].clone(), done.past_key_values
            if penalise:
                penalise(scores, answer)
            ids = [int(scores.argmax())]
            answer += ids
        answers.append(answer)
    return answers


def draw(folder: Path) -> Path:
    """An image that does not fill its budget of patches."""
    from sglang_gemma4.tiny import images

    images.draw(1, "blue").resize((200, 60)).save(folder / "picture.png")
    return folder / "picture.png"


def image_logprobs(family: str | Path, text: str, pictures: Sequence[Path], answers: int = 1) -> list[float]:
    """transformers' log-probabilities of its first greedy tokens after a prompt with images."""
    import torch
    from PIL import Image
    from transformers import AutoProcessor

    processor, model = AutoProcessor.from_pretrained(target(family)), load(family)
    images = [Image.open(path).convert("RGB") for path in pictures]
    inputs = processor(text=[text], images=[images], return_tensors="pt", add_special_tokens=False)
    with torch.inference_mode():
        done = model.generate(**inputs, do_sample=False, max_new_tokens=answers, return_dict_in_generate=True, output_logits=True)
    return [float(step[0].float().log_softmax(-1).max()) for step in done.logits]


def ask_about_images(engine: Any, extra: dict[str, Any]) -> list[float]:
    """The engine's for ``extra["text"]`` and ``extra["images"]``; a client of ``engines.ask``."""
    sampling = {"max_new_tokens": 1, "temperature": 0, "ignore_eos": True}
    found = engine.generate(prompt=extra["text"], image_data=extra["images"], sampling_params=sampling, return_logprob=True)
    return [entry[0] for entry in found["meta_info"]["output_token_logprobs"]]
