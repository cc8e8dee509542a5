"""A random LoRA adapter for a tiny model, an engine asked with and without it, and transformers with merged weights as the oracle."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import case  # type: ignore[import-not-found]
import engines  # type: ignore[import-not-found]

SPREAD, RANK, TOKENS = 0.06, 4, 12


def answers(model: Any, served: Path, folder: Path, layers: Collection[str], **engine: Any) -> tuple[list[Any], Any]:
    """What is right, and the engine's answers or last error line: the first prompt with an adapter, the second without.

    Args:
        model: in transformers; it is changed.
        served: the same model's folder.
        folder: for the adapter.
        layers: last names of the linear layers that it changes.
    """
    from sglang_gemma4.tiny import random_adapters

    sizes = random_adapters.sizes_of(model, layers)
    made: dict[str, Any] = {"rank": RANK, "seed": 0, "spread": SPREAD}
    path = random_adapters.write(folder, sizes, **made)
    plain = case.greedy(model, TOKENS)
    random_adapters.merge(model, random_adapters.weights(sizes, **made))
    expected = [case.greedy(model, TOKENS)[0], plain[1]]
    extra = {"prompts": case.PROMPTS, "adapters": ["some", None], "tokens": TOKENS}
    seen = engines.ask(served, "adapted:with_adapters", extra, lora_paths={"some": str(path)}, **engine)
    return expected, seen


def with_adapters(engine: Any, extra: Mapping[str, Any]) -> list[list[int]]:
    """The client of :func:`answers`."""
    sampling = {"max_new_tokens": extra["tokens"], "temperature": 0, "ignore_eos": True}
    outputs = engine.generate(input_ids=extra["prompts"], sampling_params=sampling, lora_path=extra["adapters"])
    return [output["output_ids"] for output in outputs]
