"""A 12B (Gemma 4 unified) as transformers 5.19 saves it does not start. Needs no GPU.

SGLang reads its configuration as another model's. ``model_patch_size`` follows from two other fields in transformers, which leaves it out.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

import case  # type: ignore[import-not-found]
import engines  # type: ignore[import-not-found]

TOKENS = 12


def main() -> int:
    """Greedy tokens of a tiny random 12B, against transformers'."""
    from sglang_gemma4.tiny import unified

    with tempfile.TemporaryDirectory() as folder:
        model = unified.write(Path(folder) / "model")
        expected = greedy(model)
        seen = engines.ask(model, "unified_config:answers", case.PROMPTS)
    return int(case.verdict(expected, seen))


def greedy(path: Path) -> list[list[int]]:
    """transformers' greedy continuation of each prompt."""
    import torch
    from transformers import AutoModelForImageTextToText

    model = AutoModelForImageTextToText.from_pretrained(path, dtype=torch.float32).eval()
    options = {"max_new_tokens": TOKENS, "min_new_tokens": TOKENS, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    return [model.generate(torch.tensor([prompt]), **options)[0, len(prompt) :].tolist() for prompt in case.PROMPTS]


def answers(engine: Any, prompts: list[list[int]]) -> list[list[int]]:
    """The client."""
    found = engine.generate(input_ids=prompts, sampling_params={"max_new_tokens": TOKENS, "temperature": 0, "ignore_eos": True})
    return [answer["output_ids"] for answer in found]


if __name__ == "__main__":
    sys.exit(main())
