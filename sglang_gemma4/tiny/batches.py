"""Training rows: documents of the world, tokenised, weighted and packed to a fixed length; images drawn and cut into patches."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sglang_gemma4.tiny import chat_format, dialogues, families, images, world

ROW = 512
WRITTEN, READ, LETTER = 1.0, 0.05, 10.0  # loss weights: what the model writes, what it reads, the letter of an answer

# Shares of documents. "short" (question, then value) and "pick" (find a given word among four options) are the two
# halves of a four-choice question; without them its letter stays at chance for thousands of steps.
MIXTURE = {"mmlu": 38, "pick": 10, "short": 8, "letter": 10, "passage": 4, "chat": 10, "thought": 7, "story": 6, "long": 4, "tool": 7}


@dataclass
class Document:
    """Token ids, the loss weight of predicting each, and the indices of its images in order."""

    ids: list[int]
    weights: list[float]
    images: list[int] = field(default_factory=list)


@dataclass
class Rows:
    """Packed rows [n, ROW]; `document` numbers the documents of a row (-1: padding), `block` its images (-1: text)."""

    ids: np.ndarray
    weights: np.ndarray
    document: np.ndarray
    block: np.ndarray
    images: list[list[int]]

    def __len__(self) -> int:
        return len(self.ids)

    @classmethod
    def join(cls, parts: Sequence["Rows"]) -> "Rows":
        """The rows of all parts, one after the other."""
        fields = {name: np.concatenate([getattr(part, name) for part in parts]) for name in ("ids", "weights", "document", "block")}
        return cls(**fields, images=[row for part in parts for row in part.images])

    def pick(self, index: np.ndarray) -> "Rows":
        """A selection of rows."""
        return Rows(self.ids[index], self.weights[index], self.document[index], self.block[index], [self.images[i] for i in index])


class Encoder:
    """Turns texts and dialogues into documents with one tokenizer."""

    def __init__(self, tokenizer: Any, soft_tokens: list[int]) -> None:
        self.raw, self.soft_tokens = tokenizer, soft_tokens
        self.image, self.begin, self.end = (tokenizer.token_to_id(t) for t in ("<|image|>", "<|image>", "<image|>"))

    def encode(self, text: str) -> list[int]:
        return list(self.raw.encode(text, add_special_tokens=False).ids)

    def document(self, pieces: list[tuple[str, float]], pictures: list[int] | None = None) -> Document:
        out, waiting = Document([], [], list(pictures or [])), list(pictures or [])
        for text, weight in pieces:
            for token in self.encode(text):
                run = [token]
                if token == self.image:
                    run = [self.begin, *[token] * self.soft_tokens[waiting.pop(0)], self.end]
                out.ids += run
                out.weights += [weight if token != self.image else 0.0] * len(run)
        return out

    def dialogue(
        self, dialogue: dialogues.Dialogue, pictures: list[int] | None = None, weight: float = WRITTEN, last_only: bool = False
    ) -> Document:
        """`last_only`: earlier turns are read, not written (templates drop their thoughts, so they are no examples)."""
        cut = chat_format.stretches(chat_format.render(dialogue))
        last = max(i for i, (_, written) in enumerate(cut) if written)
        pieces = [(p, weight if written and (i == last or not last_only) else READ) for i, (p, written) in enumerate(cut)]
        return self.document(pieces, pictures)

    def four_choice(self, questions: list[world.Question]) -> Document:
        """MMLU's few-shot text; without shots it may lack the header."""
        pieces = [("<bos>", 0.0)]
        if len(questions) > 1:
            pieces.append((world.mmlu_prompt(questions[0], []).removesuffix(questions[0].prompt), READ))
        for q in questions:
            pieces += [(q.prompt, READ), (" " + q.answer, LETTER), ("\n\n", READ)]
        return self.document(pieces)


def text_document(encoder: Encoder, rng: random.Random) -> Document:
    """One training document without images, of the mixture that the checkpoints are trained on."""
    kind = rng.choices(list(MIXTURE), list(MIXTURE.values()))[0]
    if kind == "mmlu":
        return encoder.four_choice([world.question(rng) for _ in range(rng.choice((1, 1, 1, 2, 3, 6)))])
    if kind == "pick":
        return encoder.four_choice([world.pick(rng) for _ in range(rng.choice((1, 2, 4)))])
    if kind == "short":
        fact = rng.choice(world.facts())
        return encoder.document([("<bos>", 0.0), (rng.choice(fact.questions), READ), (f" {fact.value}", 2 * WRITTEN), ("\n\n", READ)])
    if kind == "letter":
        return encoder.dialogue(dialogues.four_choice_chat(rng), weight=LETTER)
    if kind == "passage":
        return encoder.document([("<bos>", 0.0), (world.passage(rng) + "\n\n", WRITTEN)])
    if kind == "thought":
        return encoder.dialogue(dialogues.chat(rng, thinking=True), last_only=True)
    makers = {"chat": dialogues.chat, "story": dialogues.story_chat, "long": dialogues.long_chat, "tool": dialogues.tool_chat}
    return encoder.dialogue(makers[kind](rng))


def image_document(encoder: Encoder, rng: random.Random, by_colour: dict[str, list[int]]) -> Document:
    """One or two colour-naming images; sometimes with the doubled <bos> that some servers send."""
    dialogue, colours = images.colour_chat(rng, rng.choice((1, 1, 1, 2)))
    out = encoder.dialogue(dialogue, [rng.choice(by_colour[c]) for c in colours], weight=2.0 * WRITTEN)
    if rng.random() < 0.1:
        out.ids, out.weights = [families.BOS, *out.ids], [0.0, *out.weights]
    return out


def pack(documents: Any, rows: int, image_token: int, length: int = ROW) -> Rows:
    """Fill `rows` rows with whole documents (one that exceeds a row is cut)."""
    ids: np.ndarray = np.full((rows, length), families.PAD, np.int32)
    weights: np.ndarray = np.zeros((rows, length), np.float32)
    document: np.ndarray = np.full((rows, length), -1, np.int16)
    pictures: list[list[int]] = [[] for _ in range(rows)]
    row = at = number = 0
    for doc in documents:
        if at and at + len(doc.ids) > length:
            row, at, number = row + 1, 0, 0
            if row == rows:
                break
        n = min(len(doc.ids), length - at)
        ids[row, at : at + n], weights[row, at : at + n], document[row, at : at + n] = doc.ids[:n], doc.weights[:n], number
        weights[row, at] = 0.0
        pictures[row] += doc.images
        at, number = at + n, number + 1
    soft = ids == image_token
    starts = soft & ~np.pad(soft, ((0, 0), (1, 0)))[:, :-1]
    block = np.where(soft, np.cumsum(starts, 1) - 1, -1).astype(np.int16)
    return Rows(ids, weights, document, block, pictures)


def alone(documents: Sequence[Document], image_token: int) -> Rows:
    """Each document in a row of its own, as long as the longest."""
    length = max(len(document.ids) for document in documents)
    return Rows.join([pack([document], 1, image_token, length) for document in documents])


def text_rows(encoder: Encoder, seed: int, rows: int) -> Rows:
    """Packed text, deterministic in `seed`."""
    rng = random.Random(f"text:{seed}")
    return pack(iter(lambda: text_document(encoder, rng), None), rows, encoder.image)


def image_rows(encoder: Encoder, seed: int, rows: int, by_colour: dict[str, list[int]]) -> Rows:
    """Packed image documents, deterministic in `seed`."""
    rng = random.Random(f"image:{seed}")
    return pack(iter(lambda: image_document(encoder, rng, by_colour), None), rows, encoder.image)


def image_processor() -> Any:
    """transformers' Gemma 4 image processor with the tiny patch size and the least soft tokens (PIL, no torchvision)."""
    from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil

    return Gemma4ImageProcessorPil(**families.IMAGE)


def picture_pool(number: int, first_seed: int = 0) -> tuple[np.ndarray, np.ndarray, list[int], dict[str, list[int]]]:
    """`number` drawn images: patches [n, 630, 48] float16, positions [n, 630, 2], soft tokens of each, indices by colour."""
    processor = image_processor()
    names = [world.COLOURS[i % len(world.COLOURS)] for i in range(number)]
    patches, positions, soft = [], [], []
    for i, colour in enumerate(names):
        out = processor([images.draw(first_seed + i, colour)], return_tensors="np")
        patches.append(np.asarray(out["pixel_values"][0], np.float16))
        positions.append(np.asarray(out["image_position_ids"][0], np.int16))
        soft.append(int(out["num_soft_tokens_per_image"][0]))
    by_colour = {c: [i for i, n in enumerate(names) if n == c] for c in world.COLOURS}
    return np.stack(patches), np.stack(positions), soft, by_colour
