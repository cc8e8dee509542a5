"""The prompts of this run, and what is written down of an answer."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sglang_gemma4.tiny import chat_format, dialogues, images

FAMILIES = ("tiny-26b-a4b", "tiny-e2b", "tiny-31b")
NEW_TOKENS, STEPS, SEED = 64, 3, 31
KINDS = {"chat": 80, "story": 10, "story begun": 30, "four-choice": 20, "tool": 20, "long": 80, "image": 30, "two images": 10}
"""Different prompts of each kind; the proportions of the text prompts are those of tests/engine/test_oracle.py. The world has 10 held-out
requests for a story; "story begun" is one of them with the first sentences of its answer."""


def prompts(folder: Path) -> list[dict[str, Any]]:
    """``kind``, ``text`` and ``images`` (paths in ``folder``) of each prompt, those with images last.

    Every dialogue is of the world's held-out split; a story, a chat or a tool's answers before the last turn are part of the prompt.
    """
    rng = random.Random(SEED)
    makers: dict[str, Any] = {
        "chat": lambda: dialogues.chat(rng, "held_out"),
        "story": lambda: dialogues.story_chat(rng, "held_out"),
        "story begun": lambda: dialogues.story_chat(rng, "held_out"),
        "four-choice": lambda: dialogues.four_choice_chat(rng, "held_out"),
        "tool": lambda: dialogues.tool_chat(rng, "held_out"),
        "long": lambda: dialogues.long_chat(rng, "held_out", sentences=20),
    }
    found: list[dict[str, Any]] = []
    seen: set[str] = set()
    for kind, count in KINDS.items():
        for _ in range(count):
            if kind in makers:
                text = next(text for text in _renderings(makers[kind], kind == "story begun") if text not in seen)
                seen.add(text)
                found.append({"kind": kind, "text": text, "images": []})
                continue
            dialogue, colours = images.colour_chat(rng, 1 if kind == "image" else 2)
            paths = []
            for colour in colours:
                path = folder / f"{len(found)}-{len(paths)}.png"
                images.draw(images.HELD_OUT_SEED + 4 * len(found) + len(paths), colour).save(path)
                paths.append(str(path))
            found.append({"kind": kind, "text": chat_format.render(dialogue, prompt_only=True), "images": paths})
    return found


def _renderings(make: Any, begun: bool) -> Iterator[str]:
    for _ in range(10_000):
        dialogue = make()
        text = chat_format.render(dialogue, prompt_only=True)
        sentences = dialogue.messages[-1]["content"].split(". ")
        yield text + ". ".join(sentences[: len(sentences) // 2]) + "." if begun else text
    raise RuntimeError("the world has no further held-out prompt of this kind; ask for fewer")


def write(path: Path, **record: Any) -> None:
    """Append one line."""
    with path.open("a") as file:
        file.write(json.dumps(record) + "\n")


def records(path: Path) -> list[dict[str, Any]]:
    """All lines; none where there is no file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
