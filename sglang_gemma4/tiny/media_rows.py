"""Training rows of the unified family: images as patches of one soft token each, and audio as frames of its waveform.

A patch's first LayerNorm removes its brightness and contrast, so black, white and grey look alike to a unified model.
These colours are neither taught nor asked.
"""

import random
from collections.abc import Iterable
from itertools import repeat
from typing import Any

import numpy as np

from sglang_gemma4.tiny import batches, images, sounds, world
from sglang_gemma4.tiny.batches import Array, Encoder, Pictures
from sglang_gemma4.tiny.dialogues import Dialogue
from sglang_gemma4.tiny.sounds import Sounds

COLOURS = tuple(colour for colour in world.COLOURS if colour not in ("black", "white", "grey"))
FIRST_SOUND = -2
"""The ``picture`` in :data:`batches.TOKEN` of an audio clip's soft token is this minus the clip's index."""


class Media(Pictures):
    """Drawn images and audio: patches [n, 70, pixels of a soft token], positions [n, 70, 2], and ``sounds``."""

    sounds: Sounds


def media(patches: Array, positions: Array, heard: Sounds) -> Media:
    """The pool of these images, whose colours cycle, and of the audio clips ``heard``."""
    by_colour = {colour: list(range(number, len(patches), len(COLOURS))) for number, colour in enumerate(COLOURS)}
    made = Media(patches, positions, [int(n) for n in (positions >= 0).all(-1).sum(-1)], by_colour)
    made.sounds = heard
    return made


def pool(pictures: int, heard: int, first_seed: int = 0) -> Media:
    """Draw ``pictures`` images and ``heard`` audio clips; their colours and animals cycle."""
    from sglang_gemma4.tiny import unified

    _, processor, _, _ = unified.parts()
    drawn = [images.draw(first_seed + i, COLOURS[i % len(COLOURS)]) for i in range(pictures)]
    made = [processor([one], return_tensors="np") for one in drawn]
    patches, positions = (np.stack([one[name][0] for one in made]) for name in ("pixel_values", "image_position_ids"))
    return media(patches.astype(np.float16), positions.astype(np.int16), sounds.pool(heard, first_seed))


class MediaEncoder(Encoder):
    """An encoder whose documents may have audio too; ``pictures`` then holds FIRST_SOUND minus the clip's index."""

    def __init__(self, tokenizer: Any, pool: Media) -> None:
        super().__init__(tokenizer, pool)
        self.media = pool
        self.sound, self.begin_sound, self.end_sound = (tokenizer.token_to_id(t) for t in ("<|audio|>", "<|audio>", "<audio|>"))

    def document(self, pieces: list[tuple[str, float]], pictures: Iterable[int] = ()) -> Array:
        """The document of (text, loss weight) pieces; each placeholder becomes the unpredicted soft tokens of the next of ``pictures``."""
        tokens: list[tuple[int, float, int, int]] = []
        waiting = iter(pictures)
        for text, weight in pieces:
            for token in self.encode(text):
                if token not in (self.image, self.sound):
                    tokens.append((token, weight, 0, -1))
                    continue
                number = next(waiting)
                begin, end, soft = (
                    (self.begin, self.end, self.media.soft[number])
                    if token == self.image
                    else (self.begin_sound, self.end_sound, int(self.media.sounds.lengths[FIRST_SOUND - number]))
                )
                tokens += [(begin, 0.0, 0, -1), *[(token, 0.0, 0, number)] * soft, (end, 0.0, 0, -1)]
        out: Array = np.array(tokens, batches.TOKEN)
        return out


def media_document(
    encoder: MediaEncoder, rng: random.Random, kind: str, number: int, weight: float = batches.WRITTEN, empty_thought: bool = False
) -> Array:
    """A document that asks for ``number`` "colours" or "animals", or for an image and an audio clip ("both"), with the answer."""
    dialogue, names = _asked(rng, kind, number)
    shown, heard = encoder.media.by_colour, encoder.media.sounds.by_animal
    numbers = [rng.choice(shown[name]) if name in shown else FIRST_SOUND - rng.choice(heard[name]) for name in names]
    return encoder.dialogue(dialogue, numbers, weight, empty_thought=empty_thought)


def _asked(rng: random.Random, kind: str, number: int) -> tuple[Dialogue, list[str]]:
    """The dialogue, and the names that it asks for in the order of its media."""
    if kind == "animals":
        return sounds.animal_chat(rng, number)
    if kind == "colours":
        return images.colour_chat(rng, number, COLOURS)
    (picture, (colour,)), (sound, (animal,)) = images.colour_chat(rng, 1, COLOURS), sounds.animal_chat(rng, 1)
    first, second = (one.messages[0]["content"] for one in (picture, sound))
    content = [first[0], second[0], {"type": "text", "text": f"{first[1]['text']} {second[1]['text']}"}]
    answer = {"role": "assistant", "content": f"{colour} and {animal}"}
    return Dialogue([{"role": "user", "content": content}, answer]), [colour, animal]


def media_rows(encoder: MediaEncoder, seed: int, rows: int) -> Array:
    """Packed documents with images and audio [rows, ROW], deterministic in ``seed``."""
    rng = random.Random(f"media:{seed}")

    def made() -> Array:
        kind = rng.choice(("colours", "colours", "animals", "animals", "both"))
        return media_document(encoder, rng, kind, rng.choice((1, 1, 2)), 2 * batches.WRITTEN, rng.random() < batches.EMPTY_THOUGHTS)

    return batches.pack((made() for _ in repeat(None)), rows)
