"""Training rows: documents of the world, tokenised, weighted and packed to a fixed length; images drawn and cut into patches."""

import random
from collections.abc import Iterable
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np

from sglang_gemma4.tiny import chat_format, dialogues, families, images, world

Array = np.ndarray[Any, Any]

ROW = 512
WRITTEN, READ, LETTER = 1.0, 0.05, 10.0  # loss weights: what the model writes, what it reads, the letter of an answer

TOKEN: np.dtype[np.void] = np.dtype([("id", "i4"), ("weight", "f4"), ("document", "i2"), ("picture", "i4")])
"""One position of a row.

Token id, loss weight of predicting it, number of its document in the row (-1: padding), and the index of the image
whose soft token it is (-1: text).
"""
PADDING = np.array((families.PAD, 0.0, -1, -1), TOKEN)

# Shares of each type of document. "short" (question, then value) and "pick" (find a given word among four options)
# are the two halves of a four-choice question; without them its letter stays at chance for thousands of steps.
MIXTURE = {
    "mmlu": 38,
    "pick": 10,
    "short": 8,
    "letter": 10,
    "passage": 4,
    "chat": 10,
    "thought": 7,
    "story": 6,
    "long": 4,
    "tool": 7,
    "tool thought": 6,
}
EMPTY_THOUGHTS = 0.5  # share of the dialogues; the rest follow the generation prompt of E2B and E4B


class Pictures(NamedTuple):
    """Drawn images: patches [n, 630, 48] float16, positions [n, 630, 2] int16, soft tokens per image, image indices by colour."""

    patches: Array
    positions: Array
    soft: list[int]
    by_colour: dict[str, list[int]]


def picture_pool(number: int, first_seed: int = 0) -> Pictures:
    """Draw ``number`` images; their colours cycle through the world's."""
    processor = image_processor()
    names = [world.COLOURS[i % len(world.COLOURS)] for i in range(number)]
    made = [processor([images.draw(first_seed + i, colour)], return_tensors="np") for i, colour in enumerate(names)]
    return Pictures(
        np.stack([one["pixel_values"][0] for one in made]).astype(np.float16),
        np.stack([one["image_position_ids"][0] for one in made]).astype(np.int16),
        [int(one["num_soft_tokens_per_image"][0]) for one in made],
        {colour: [i for i, name in enumerate(names) if name == colour] for colour in world.COLOURS},
    )


def image_processor() -> Any:
    """transformers' Gemma 4 image processor with the tiny patch size and the fewest soft tokens (PIL, no torchvision)."""
    from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil

    return Gemma4ImageProcessorPil(**families.IMAGE)


def document(ids: list[int]) -> Array:
    """A document [tokens] of plain text whose loss weights are all 0."""
    out: Array = np.full(len(ids), PADDING)
    out["id"], out["document"] = ids, 0
    return out


class Encoder:
    """Turns texts and dialogues into documents: arrays [tokens] of :data:`TOKEN`."""

    def __init__(self, tokenizer: Any, pictures: Pictures | None = None) -> None:
        self.raw, self.pictures = tokenizer, pictures
        self.image, self.begin, self.end = (tokenizer.token_to_id(t) for t in ("<|image|>", "<|image>", "<image|>"))

    def encode(self, text: str) -> list[int]:
        return list(self.raw.encode(text, add_special_tokens=False).ids)

    def document(self, pieces: list[tuple[str, float]], pictures: Iterable[int] = ()) -> Array:
        """The document of (text, loss weight) pieces; each <|image|> becomes the unpredicted soft tokens of the next of ``pictures``."""
        tokens: list[tuple[int, float, int, int]] = []
        waiting = iter(pictures)
        for text, weight in pieces:
            for token in self.encode(text):
                if token != self.image:
                    tokens.append((token, weight, 0, -1))
                    continue
                assert self.pictures is not None
                picture = next(waiting)
                soft = [(token, 0.0, 0, picture)] * self.pictures.soft[picture]
                tokens += [(self.begin, 0.0, 0, -1), *soft, (self.end, 0.0, 0, -1)]
        out: Array = np.array(tokens, TOKEN)
        return out

    def dialogue(
        self,
        dialogue: dialogues.Dialogue,
        pictures: Iterable[int] = (),
        weight: float = WRITTEN,
        last_only: bool = False,
        empty_thought: bool = False,
    ) -> Array:
        """The document of a dialogue; the tokens that the model writes have ``weight``, all others :data:`READ`.

        ``last_only``: earlier turns count as read, not written: templates drop their thoughts, so they are no
        examples.
        ``empty_thought``: as in :func:`chat_format.render`.
        """
        awaited = chat_format.AWAITED if dialogue.messages[-1].get("tool_calls") else ""
        cut = chat_format.stretches(chat_format.render(dialogue, empty_thought=empty_thought) + awaited)
        last = max(i for i, (_, written) in enumerate(cut) if written)
        pieces = [(p, weight if written and (i == last or not last_only) else READ) for i, (p, written) in enumerate(cut)]
        return self.document(pieces, pictures)

    def four_choice(self, questions: list[world.Question]) -> Array:
        """A document of MMLU's few-shot text; a single question has no header."""
        pieces = [("<bos>", 0.0)]
        if len(questions) > 1:
            pieces.append((world.mmlu_prompt(questions[0], []).removesuffix(questions[0].prompt), READ))
        for q in questions:
            pieces += [(q.prompt, READ), (" " + q.answer, LETTER), ("\n\n", READ)]
        return self.document(pieces)


def text_document(encoder: Encoder, rng: random.Random) -> Array:
    """One training document without images, drawn from :data:`MIXTURE`."""
    kind = rng.choices(list(MIXTURE), list(MIXTURE.values()))[0]
    if kind == "mmlu":
        return encoder.four_choice([world.question(rng) for _ in range(rng.choice((1, 1, 1, 2, 3, 6)))])
    if kind == "pick":
        return encoder.four_choice([world.pick(rng) for _ in range(rng.choice((1, 2, 4)))])
    if kind == "short":
        fact = rng.choice(world.facts())
        return encoder.document([("<bos>", 0.0), (rng.choice(fact.questions), READ), (f" {fact.value}", 2 * WRITTEN), ("\n\n", READ)])
    empty = rng.random() < EMPTY_THOUGHTS
    if kind == "letter":
        return encoder.dialogue(dialogues.four_choice_chat(rng), weight=LETTER, empty_thought=empty)
    if kind == "passage":
        return encoder.document([("<bos>", 0.0), (world.passage(rng) + "\n\n", WRITTEN)])
    if kind == "thought":
        return encoder.dialogue(dialogues.chat(rng, thinking=True), last_only=True)
    if kind == "tool thought":
        return encoder.dialogue(dialogues.tool_chat(rng, thinking=True))
    made = dialogues.MAKERS[kind](rng)
    # Only the last message follows an empty thought; so the call has one only if the dialogue is cut to end with it.
    return encoder.dialogue(rng.choice(chat_format.asked(made)) if kind == "tool" and empty else made, empty_thought=empty)


def image_document(encoder: Encoder, rng: random.Random) -> Array:
    """One or two colour-naming images; sometimes with the doubled <bos> that some servers send."""
    out = colour_document(encoder, rng, rng.choice((1, 1, 1, 2)), 2.0 * WRITTEN, rng.random() < EMPTY_THOUGHTS)
    return np.concatenate([document([families.BOS]), out]) if rng.random() < 0.1 else out


def colour_document(encoder: Encoder, rng: random.Random, number: int, weight: float = WRITTEN, empty_thought: bool = False) -> Array:
    """A document that asks for the colours of ``number`` images of the encoder's pool, with the answer."""
    assert encoder.pictures is not None
    dialogue, colours = images.colour_chat(rng, number)
    pictures = [rng.choice(encoder.pictures.by_colour[colour]) for colour in colours]
    return encoder.dialogue(dialogue, pictures, weight, empty_thought=empty_thought)


def pack(documents: Iterable[Array], rows: int, length: int = ROW) -> Array:
    """Fill [rows, length] with whole documents; one that exceeds a row is cut. The first token of each has weight 0."""
    out: Array = np.full((rows, length), PADDING)
    row = at = number = 0
    for tokens in documents:
        if at and at + len(tokens) > length:
            row, at, number = row + 1, 0, 0
            if row == rows:
                break
        place = out[row, at : at + len(tokens)]
        place[:] = tokens[: len(place)]
        place["document"], place["weight"][0] = number, 0.0
        at, number = at + len(place), number + 1
    return out


def alone(documents: list[Array]) -> Array:
    """Each document in a row of its own; the rows are as long as the longest document."""
    length = max(map(len, documents))
    rows: Array = np.concatenate([pack([tokens], 1, length) for tokens in documents])
    return rows


def text_rows(encoder: Encoder, seed: int, rows: int) -> Array:
    """Packed text [rows, ROW], deterministic in ``seed``."""
    rng = random.Random(f"text:{seed}")
    return pack((text_document(encoder, rng) for _ in repeat(None)), rows)


def image_rows(encoder: Encoder, seed: int, rows: int) -> Array:
    """Packed image documents [rows, ROW], deterministic in ``seed``."""
    rng = random.Random(f"image:{seed}")
    return pack((image_document(encoder, rng) for _ in repeat(None)), rows)


def blocks(picture: Array) -> tuple[Array, Array]:
    """The images of each row [rows, length]: each position's image number in the row (-1: text), and whether an image begins there."""
    soft = picture >= 0
    begins = soft & ~np.pad(soft, ((0, 0), (1, 0)))[:, :-1]
    return np.where(soft, np.cumsum(begins, 1) - 1, -1), begins
