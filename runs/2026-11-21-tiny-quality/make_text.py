"""Writes text.txt: passages, stories and held-out four-choice questions of the tiny models' world, from a seed that training never used."""

import random
from pathlib import Path

from sglang_gemma4.tiny import dialogues, world

SEED = 2_000_000
SECTIONS = 16


def main() -> None:
    rng = random.Random(SEED)
    sections = []
    for _ in range(SECTIONS):
        question = world.question(rng, "held_out")
        story = dialogues.story_text(rng, rng.choice(world.PEOPLE), 12)
        sections += [world.passage(rng), story, f"{question.prompt} {question.answer}"]
    Path(__file__).with_name("text.txt").write_text("\n\n".join(sections) + "\n")


if __name__ == "__main__":
    main()
