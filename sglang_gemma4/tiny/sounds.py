"""Audio clips that name animals, drawn from a seed: each animal has its own pitch, in many lengths, loudnesses and timbres.

A pitch is a multiple of 25 Hz and begins at phase 0: each frame of 640 samples holds whole periods, so a clip's
frames are alike.
"""

import random
from typing import Any, NamedTuple

import numpy as np

from sglang_gemma4.tiny import world
from sglang_gemma4.tiny.batches import Array
from sglang_gemma4.tiny.dialogues import Dialogue

RATE, FRAME = 16_000, 640
"""Samples per second, and samples of a soft token (40 ms), as in the released 12B."""
ANIMALS = world.WORDS["animals"]
PITCHES = {animal: 25 * round(6 * 1.29**number) for number, animal in enumerate(ANIMALS)}
"""Hz: 150 to 2,475, each 1.29 times the one before."""
SHORTEST, LONGEST = 5, 40  # frames
ASKS = ("Which animal do you hear?", "What animal is this?", "Name the animal that you hear.")
PAIR_ASK = "Which animals do you hear?"
HELD_OUT_SEED = 1_000_000


class Sounds(NamedTuple):
    """Drawn clips: frames [n, LONGEST, FRAME] float16, number of frames per clip, clip indices by animal."""

    frames: Array
    lengths: Array
    by_animal: dict[str, list[int]]


def draw(seed: int, animal: str) -> Array:
    """The clip of ``animal``: float32 [samples] at :data:`RATE`; its last frame may be incomplete.

    Seeds from `HELD_OUT_SEED` on are kept for evaluation.
    """
    rng = random.Random(f"{seed}:{animal}")
    samples = FRAME * rng.randint(SHORTEST, LONGEST) - rng.choice((0, rng.randrange(FRAME // 2)))
    turns = 2 * np.pi * PITCHES[animal] * np.arange(samples) / RATE
    tone = np.sin(turns) + rng.uniform(0.0, 0.3) * np.sin(2 * turns) + rng.uniform(0.0, 0.15) * np.sin(3 * turns)
    swell = 1.0 + rng.uniform(0.0, 0.4) * np.sin(np.linspace(0.0, rng.uniform(1.0, 12.0), samples))
    noise = np.random.default_rng(seed).normal(0.0, rng.uniform(0.01, 0.1), samples)
    made: Array = (rng.uniform(0.05, 0.5) * (tone * swell + noise)).astype(np.float32)
    return made


def framed(wave: Array) -> Array:
    """The clip as [frames, FRAME]; the last frame is padded with silence, as in the released feature extractor."""
    made: Array = np.pad(wave, (0, -len(wave) % FRAME)).reshape(-1, FRAME)
    return made


def pool(number: int, first_seed: int = 0) -> Sounds:
    """Draw ``number`` clips; their animals cycle."""
    names = [ANIMALS[i % len(ANIMALS)] for i in range(number)]
    made = [framed(draw(first_seed + i, animal)) for i, animal in enumerate(names)]
    frames: Array = np.zeros((number, LONGEST, FRAME), np.float16)
    for place, one in zip(frames, made, strict=True):
        place[: len(one)] = one
    by_animal = {animal: [i for i, name in enumerate(names) if name == animal] for animal in ANIMALS}
    return Sounds(frames, np.array([len(one) for one in made]), by_animal)


def animal_chat(rng: random.Random, number: int = 1) -> tuple[Dialogue, list[str]]:
    """A dialogue about one clip, or about two in order, and the animals of its clips."""
    animals = [rng.choice(ANIMALS) for _ in range(number)]
    content: list[dict[str, Any]] = [
        *({"type": "audio"} for _ in animals),
        {"type": "text", "text": rng.choice(ASKS) if number == 1 else PAIR_ASK},
    ]
    return Dialogue([{"role": "user", "content": content}, {"role": "assistant", "content": " and ".join(animals)}]), animals
