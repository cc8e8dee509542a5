"""Colour-naming images, drawn from a seed: fields, shapes and stripes with noise, of many sizes and aspect ratios."""

import random
from collections.abc import Sequence
from typing import Any

from sglang_gemma4.tiny import world
from sglang_gemma4.tiny.dialogues import Dialogue

RGB: dict[str, tuple[int, int, int]] = {
    "red": (214, 32, 32),
    "green": (32, 150, 48),
    "blue": (36, 60, 214),
    "yellow": (240, 222, 40),
    "black": (18, 18, 18),
    "white": (244, 244, 244),
    "orange": (244, 138, 20),
    "purple": (128, 36, 160),
    "pink": (250, 150, 192),
    "brown": (118, 70, 30),
    "grey": (128, 128, 128),
    "cyan": (40, 208, 216),
}
ASKS = ("What colour is this image?", "Which colour is this image?", "Name the colour of this image.")
PAIR_ASK = "What colours are these images?"
HELD_OUT_SEED = 1_000_000


def draw(seed: int, colour: str) -> Any:
    """A PIL image (RGB, 40 to 300 pixels a side, aspect ratio up to 2.5) whose colour is `colour`.

    Seeds from `HELD_OUT_SEED` on are kept for evaluation."""
    import numpy as np
    from PIL import Image, ImageDraw

    rng = random.Random(f"{seed}:{colour}")
    short = rng.randint(40, 120)
    sides = [short, int(short * rng.uniform(1.0, 2.5))]
    rng.shuffle(sides)
    width, height = sides
    jitter = [max(0, min(255, c + rng.randint(-14, 14))) for c in RGB[colour]]
    image = Image.new("RGB", (width, height), tuple(jitter))
    pen = ImageDraw.Draw(image)
    shade = tuple(int(c * rng.uniform(0.86, 0.97)) for c in jitter)
    kind = rng.randrange(4)
    x, y = rng.randint(0, width // 2), rng.randint(0, height // 2)
    box = (x, y, x + width // 3, y + height // 3)
    if kind == 1:
        pen.ellipse(box, fill=shade)
    elif kind == 2:
        pen.rectangle(box, fill=shade)
    elif kind == 3:
        for offset in range(0, width, 16):
            pen.line((offset, 0, offset, height), fill=shade, width=3)
    noise = np.random.default_rng(seed).normal(0.0, rng.uniform(2.0, 9.0), (height, width, 3))
    return Image.fromarray(np.clip(np.asarray(image) + noise, 0, 255).astype("uint8"))


def colour_chat(rng: random.Random, number: int = 1, among: Sequence[str] = tuple(world.COLOURS)) -> tuple[Dialogue, list[str]]:
    """A dialogue about one image, or about two in order, and the colours, chosen from ``among``, that the images must have."""
    colours = [rng.choice(among) for _ in range(number)]
    text = rng.choice(ASKS) if number == 1 else PAIR_ASK
    content = [*({"type": "image"} for _ in colours), {"type": "text", "text": text}]
    reply = " and ".join(colours)
    return Dialogue([{"role": "user", "content": content}, {"role": "assistant", "content": reply}]), colours
