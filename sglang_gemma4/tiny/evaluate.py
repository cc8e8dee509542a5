"""Measuring a tiny checkpoint on held-out prompts: four-choice accuracy, colours, chats, tool calls, accept length.

`python -m sglang_gemma4.tiny.evaluate DIRECTORY` measures every family found there and writes DIRECTORY/RESULTS.json.
Checkpoints are loaded from their bfloat16 files into float32.
"""

import argparse
import json
import random
import time
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from sglang_gemma4.tiny import batches, chat_format, dialogues, export, families, images, media_rows, world
from sglang_gemma4.tiny import tokenizer as tiny_tokenizer
from sglang_gemma4.tiny.batches import Array, Encoder, Pictures
from sglang_gemma4.tiny.drafting import matched_drafts, verify_rounds
from sglang_gemma4.tiny.packed_forward import Batch, hidden_states, logits_of, to_device

QUESTIONS, COLOURS, CHATS, SEED = 400, 30, 60, 7


def load(path: Path, name: str, device: str) -> tuple[Any, Any, Any]:
    """(target, assistant, raw tokenizer), float32, on `device`."""
    target, assistant = (_read(path / f"{name}{role}").to(device).eval() for role in ("", "-assistant"))
    return target, assistant, tiny_tokenizer.load_raw(path / name)


def _read(path: Path) -> Any:
    """A checkpoint's model in float32, with the class that its config.json names."""
    import transformers

    (kind,) = transformers.AutoConfig.from_pretrained(path).architectures
    return getattr(transformers, kind).from_pretrained(path, dtype=torch.float32)


@torch.no_grad()
def right(model: Any, documents: list[Array], pictures: Pictures | None = None) -> list[bool]:
    """For each document, whether all tokens that the model writes are its greedy choice."""
    out: list[bool] = []
    device = next(model.parameters()).device.type
    for begin in range(0, len(documents), 40):
        batch = to_device(batches.alone(documents[begin : begin + 40]), pictures, model.config.text_config, device)
        best = logits_of(model, hidden_states(model, batch).last_hidden_state).argmax(-1)
        missed = (best[:, :-1] != batch.ids[:, 1:]) & (batch.weights[:, 1:] >= batches.WRITTEN)
        out += (~missed.any(1)).tolist()
    return out


def exact(model: Any, documents: list[Array], pictures: Pictures | None = None) -> float:
    """Share of documents that are :func:`right`."""
    found = right(model, documents, pictures)
    return float(sum(found) / len(found))


def exact_dialogues(model: Any, encoder: Encoder, made: list[dialogues.Dialogue], empty_thought: bool) -> float:
    """Share of dialogues whose every message is the model's greedy choice after the prompt that a server renders for it."""
    asked = [(number, one) for number, dialogue in enumerate(made) for one in chat_format.asked(dialogue)]
    found = right(model, [encoder.dialogue(one, last_only=True, empty_thought=empty_thought) for _, one in asked])
    return 1.0 - len({number for (number, _), well in zip(asked, found, strict=True) if not well}) / len(made)


def four_choice_accuracy(model: Any, encoder: Encoder, shots: int = 0, number: int = QUESTIONS) -> float:
    """Accuracy on held-out questions; only the last letter counts. The few-shot examples are held-out questions too."""
    rng = random.Random(SEED)
    documents = [encoder.four_choice([world.question(rng, "held_out") for _ in range(shots + 1)]) for _ in range(number)]
    for document in documents:
        letter = np.flatnonzero(document["weight"] == batches.LETTER)[-1]
        document["weight"] = np.arange(len(document)) == letter
    return float(exact(model, documents))


def colours(model: Any, raw: Any, empty_thought: bool) -> dict[str, int]:
    """Right answers out of ``COLOURS`` single images and as many pairs, drawn from held-out seeds."""
    encoder, rng = Encoder(raw, batches.picture_pool(2 * COLOURS, images.HELD_OUT_SEED)), random.Random(SEED)
    asked = [[batches.colour_document(encoder, rng, n, empty_thought=empty_thought) for _ in range(COLOURS)] for n in (1, 2)]
    single, pairs = (round(exact(model, documents, encoder.pictures) * COLOURS) for documents in asked)
    return {"colours_of_30": single, "colour_pairs_of_30": pairs}


def media(model: Any, raw: Any, empty_thought: bool) -> dict[str, int]:
    """Right answers of the unified family out of ``COLOURS`` each: images, audio, pairs and both together, from held-out seeds."""
    pool = media_rows.pool(2 * COLOURS, 2 * COLOURS, images.HELD_OUT_SEED)
    encoder, rng = media_rows.MediaEncoder(raw, pool), random.Random(SEED)
    asked = {
        "colours_of_30": ("colours", 1),
        "colour_pairs_of_30": ("colours", 2),
        "animals_of_30": ("animals", 1),
        "animal_pairs_of_30": ("animals", 2),
        "colour_and_animal_of_30": ("both", 1),
    }
    made = {
        name: [media_rows.media_document(encoder, rng, *kind, empty_thought=empty_thought) for _ in range(COLOURS)]
        for name, kind in asked.items()
    }
    return {name: round(exact(model, documents, pool) * COLOURS) for name, documents in made.items()}


def prompts(empty_thought: bool, number: int = 12) -> dict[str, list[str]]:
    """Held-out prompts by kind, for measuring accept length."""
    rng = random.Random(SEED + 1)

    def prompt(made: dialogues.Dialogue) -> str:
        """The prompt of the first message that the model writes."""
        return chat_format.render(chat_format.asked(made)[0], prompt_only=True, empty_thought=empty_thought)

    return {kind: [prompt(make(rng, "held_out")) for _ in range(number)] for kind, make in dialogues.MAKERS.items()}


class Continuation(NamedTuple):
    """Greedy continuations of one kind of prompt, run through the target once: ``spans`` are (row, first, end) of the outputs."""

    kind: str
    batch: Batch
    output: Any
    spans: list[tuple[int, int, int]]


@torch.no_grad()
def continuations(model: Any, raw: Any, empty_thought: bool) -> list[Continuation]:
    """The target's greedy answers to the held-out prompts, run through the target again to get the states for drafting."""
    encoder, device, out = Encoder(raw), next(model.parameters()).device.type, []
    stops = set(export.stop_ids(raw))
    for kind, texts in prompts(empty_thought).items():
        ids = [encoder.encode(text) for text in texts]
        width = max(map(len, ids))
        padded = torch.tensor([[families.PAD] * (width - len(i)) + i for i in ids], device=device)
        mask = (torch.arange(width) >= torch.tensor([[width - len(i)] for i in ids])).long().to(device)
        done = model.generate(input_ids=padded, attention_mask=mask, max_new_tokens=128, do_sample=False)[:, width:].tolist()
        done = [row[: next((i + 1 for i, token in enumerate(row) if token in stops), len(row))] for row in done]
        rows = batches.alone([batches.document(a + b) for a, b in zip(ids, done, strict=True)])
        batch = to_device(rows, None, model.config.text_config, device)
        spans = [(row, len(a) - 1, len(a) + len(b) - 1) for row, (a, b) in enumerate(zip(ids, done, strict=True))]
        out.append(Continuation(kind, batch, hidden_states(model, batch, shared_kv=True), spans))
    return out


def accept_lengths(model: Any, assistant: Any, said: list[Continuation]) -> dict[str, float]:
    """Mean accept length of greedy decoding with three draft steps, by kind of prompt and over all verify rounds."""
    rounds: dict[str, list[int]] = {}
    for kind, batch, output, spans in said:
        matched = matched_drafts(model, assistant, batch, output)
        # The last drafts reach beyond what was generated.
        walks = [verify_rounds(matched[row, begin:end].tolist(), end - begin - families.DRAFT_STEPS - 1) for row, begin, end in spans]
        rounds[kind] = list(chain(*walks))
    rounds["all"] = list(chain(*rounds.values()))
    means = {kind: round(sum(committed) / max(len(committed), 1), 3) for kind, committed in rounds.items()}
    return {**means, "rounds": len(rounds["all"])}


def measure(path: Path, name: str, device: str) -> dict[str, Any]:
    """All measurements of one family."""
    begin = time.time()
    target, assistant, raw = load(path, name, device)
    encoder, rng = Encoder(raw), random.Random(SEED)
    empty = chat_format.has_empty_thought(name)
    seen = media(target, raw, empty) if families.is_unified(name) else colours(target, raw, empty)

    def written(make: Callable[[], dialogues.Dialogue]) -> float:
        return float(round(exact_dialogues(target, encoder, [make() for _ in range(CHATS)], empty), 4))

    out: dict[str, Any] = {
        "four_choice_0_shot": round(four_choice_accuracy(target, encoder), 4),
        "four_choice_3_shot": round(four_choice_accuracy(target, encoder, 3), 4),
        **seen,
        "four_choice_chat": written(lambda: dialogues.four_choice_chat(rng, "held_out")),
        "chat_exact": written(lambda: dialogues.chat(rng, "held_out")),
        "thinking_exact": written(lambda: dialogues.chat(rng, "held_out", 1, True)),
        "long_prompt_exact": written(lambda: dialogues.long_chat(rng, "held_out")),
        "one_call_exact": written(lambda: dialogues.tool_chat(rng, "held_out", 1)),
        "two_calls_exact": written(lambda: dialogues.tool_chat(rng, "held_out", 2)),
        "thinking_calls_exact": written(lambda: dialogues.tool_chat(rng, "held_out", thinking=True)),
        "accept_length": accept_lengths(target, assistant, continuations(target, raw, empty)),
        "target_parameters": sum(p.numel() for p in target.parameters()),
        "assistant_parameters": sum(p.numel() for p in assistant.parameters()),
        "target_bytes": export.size_of(path / name),
        "assistant_bytes": export.size_of(path / f"{name}-assistant"),
    }
    return dict(out, evaluation_seconds=round(time.time() - begin, 1), evaluation_device=device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    path = args.directory / "RESULTS.json"
    results = json.loads(path.read_text()) if path.exists() else {}
    for name in families.TINY:
        if (args.directory / name).is_dir():
            results[name] = {**results.get(name, {}), **measure(args.directory, name, args.device)}
            print(name, json.dumps(results[name]), flush=True)
            export.write_json(path, results)


if __name__ == "__main__":
    main()
