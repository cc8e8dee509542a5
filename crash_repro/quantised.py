"""Quantised forms of the shipped tiny checkpoints, and what transformers makes of the same weights in float32 (``dequantised.py``)."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dequantised  # type: ignore[import-not-found]
import shipped  # type: ignore[import-not-found]

TOKENS = 16


def write(folder: Path, family: str = "tiny-26b-a4b", form: str = "w4a16-g32", chosen: Callable[[str], bool] | None = None) -> Path:
    """A quantised checkpoint in a new folder; ``chosen`` says which linear layers are quantised, by name in the checkpoint."""
    from sglang_gemma4.tiny import quantisation, quantise

    shutil.copytree(shipped.target(family), folder)
    files = quantise.quantised(folder, quantisation.tiny(quantisation.FORMATS[form]), chosen=chosen or quantise.is_chosen)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def prompts() -> list[list[int]]:
    """Token ids of chats."""
    asked: list[list[int]] = shipped.questions(2, seed=5)
    return asked


def expected(folder: Path) -> list[list[int]]:
    """transformers' greedy tokens with the checkpoint's weights in float32."""
    model = shipped.load(dequantised.write(folder, folder.with_name(f"{folder.name}-float32")))
    found: list[list[int]] = shipped.greedy(model, prompts(), TOKENS)
    return found


def answer(engine: Any, _extra: object = None) -> list[list[int]]:
    """The engine's; a client of ``engines.ask``."""
    sampling = {"max_new_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
    return [output["output_ids"] for output in engine.generate(input_ids=prompts(), sampling_params=sampling)]
