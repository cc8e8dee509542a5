"""The questions: MMLU from sgl-eval's loader, four-choice questions of the tiny models' world in the same format, colour images."""

import io
import random
from dataclasses import dataclass
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from sglang_gemma4.tiny import images, world

WORLD_PROMPT = Path(__file__).with_name("world_prompt.yaml")
ANSWER_LINE = "Answer: "
"""The last line of a world prompt, which the model completes with a letter; the evaluator reads the whole line."""


@dataclass
class Questions:
    """sgl-eval examples, their dataset and why it was chosen, and how they are asked."""

    examples: list[Any]
    dataset: dict[str, Any]
    prompt_yaml: Path | None = None
    """None: the prompt that sgl-eval registers for the benchmark."""
    opening: str = ""
    """Text put before an answer when it is graded."""
    max_tokens: int = 2048


def evaluator(module: str) -> Any:
    """A module of sgl-eval.

    Raises:
        ValueError: sgl-eval is not installed.
    """
    try:
        return import_module(f"sgl_eval.{module}")
    except ModuleNotFoundError as error:
        raise ValueError(f"eval needs sgl-eval, which does not import ({error}); run pip install 'sglang-gemma4[eval]'") from error


def evaluator_version() -> str:
    return metadata.version("sgl-eval")


def four_choice(dataset: str, number: int, seed: int) -> Questions:
    """``number`` questions of ``dataset``: "mmlu", "world", or "auto" (MMLU, or the world where it cannot be fetched).

    Raises:
        ValueError: ``number`` < 1, or "mmlu" cannot be fetched.
    """
    if number < 1:
        raise ValueError(f"--questions {number} asks nothing; give 1 or more")
    if dataset == "world":
        return _world(number, seed, "asked for with --dataset world")
    import httpx

    try:
        return _mmlu(number, seed)
    except (httpx.HTTPError, OSError) as error:
        reason = f"MMLU cannot be fetched ({type(error).__name__}: {error})"
        if dataset == "mmlu":
            raise ValueError(f"{reason}; open the network, or use --dataset world with the tiny models") from error
        return _world(number, seed, reason)


def _mmlu(number: int, seed: int) -> Questions:
    registry = evaluator("evals._registry")
    # The registered loader has a fixed seed of 0; this is the same table entry with the given seed.
    entry = next(row for row in registry._TABLE if row["name"] == "mmlu")
    examples = registry._build_loader({**entry, "sample_seed": seed})(number)
    why = "sgl-eval's loader, which checks the fetched archive by SHA-256"
    return Questions(examples, {"name": "mmlu", "why": why, "seed": seed, "prompt": "sgl-eval's own"})


def _world(number: int, seed: int, why: str) -> Questions:
    """Held-out questions in the form that sgl-eval's loader gives MMLU's rows, except for the options."""
    rng, example = random.Random(seed), evaluator("types").Example
    asked = [world.question(rng, "held_out") for _ in range(number)]
    examples = [
        # MMLU's options are "A) …"; the tiny models were trained on "A. …".
        example(
            id=f"world-{index}",
            inputs={"problem": question.prompt},
            target=question.answer,
            meta={**dict(zip(world.LETTERS, question.options, strict=True)), "subtopic": question.fact.relation},
        )
        for index, question in enumerate(asked)
    ]
    prompt = "the tiny models' training form, as a user's turn; the answer is a letter that completes the prompt's last line 'Answer:'"
    return Questions(examples, {"name": "world", "why": why, "seed": seed, "prompt": prompt}, WORLD_PROMPT, ANSWER_LINE, max_tokens=16)


COLOUR_WORDS = {**{name: name for name in world.COLOURS}, "gray": "grey", "violet": "purple", "turquoise": "cyan", "teal": "cyan"}


def colour_images(number: int, seed: int) -> Questions:
    """``number`` images of one colour each, PNG, from the generator's held-out seeds.

    Raises:
        ValueError: ``number`` < 1.
    """
    if number < 1:
        raise ValueError(f"--questions {number} asks nothing; give 1 or more")
    types, rng = evaluator("types"), random.Random(seed)
    made = []
    for index in range(number):
        colour = rng.choice(world.COLOURS)
        buffer = io.BytesIO()
        images.draw(images.HELD_OUT_SEED + seed * 1000 + index, colour).save(buffer, "PNG")
        media = [types.MediaItem(kind="image", data=buffer.getvalue(), mime="image/png")]
        made.append(types.Example(f"color-{index}", {"problem": rng.choice(images.ASKS)}, colour, media=media))
    dataset = {"name": "colors", "why": "generated, held-out seeds of the tiny models' training", "seed": seed}
    return Questions(made, dataset, max_tokens=64)


def colour_named(text: str) -> str | None:
    """The first colour of the world that ``text`` names, or None."""
    words = "".join(letter if letter.isalpha() else " " for letter in text.lower()).split()
    return next((COLOUR_WORDS[word] for word in words if word in COLOUR_WORDS), None)
