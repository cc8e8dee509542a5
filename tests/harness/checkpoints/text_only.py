"""Random text-only checkpoints with a tokenizer, for engines of the nursery."""

from functools import cache
from pathlib import Path
from typing import Any

from crash_repro import case
from sglang_gemma4.tiny import tokenizer


@cache
def _tokenizer() -> Any:
    return tokenizer.fast_tokenizer(tokenizer.train(documents=100))


def save(model: Any, path: Path, sglang_names: bool = True) -> Path:
    """``case.save`` and a tokenizer beside it."""
    _tokenizer().save_pretrained(path)
    return case.save(model, path, sglang_names)
