"""The same pairs in transformers: its position rule over whole answers at once, and its own assisted generation.

``reference`` takes the answers that the engine gave and drafts from each of their positions at once (``sglang_gemma4.tiny.drafting``), with
the keys of accepted tokens only: the query 1 (transformers' rule), 0 or -1 (stock's) positions past the last key or far from it, and as
many keys in sliding layers as SGLang's draft reads, as the assistants were trained on, and as transformers' mask lets through.
``assisted`` decodes prompts with ``generate(assistant_model=...)``, whose constructor call has to be repaired first, see :class:`Repaired`.
"""

import dataclasses
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import asked
import numpy as np
import torch
from transformers import AutoModelForImageTextToText, AutoProcessor
from transformers.generation import utils as generation
from transformers.generation.candidate_generator import SinglePositionMultiTokenCandidateGenerator
from transformers.models.gemma4_assistant import Gemma4AssistantForCausalLM

from sglang_gemma4.tiny import checkpoints
from sglang_gemma4.tiny.batches import Rows
from sglang_gemma4.tiny.drafting import matched_drafts, verify_steps
from sglang_gemma4.tiny.packed_forward import hidden_states, to_device

POSITIONS = {"+1": 0, "0": -1, "-1": -2}
"""Where the draft's query stands, counted from the last key; by what is added to transformers' position."""

FAR = {"+9": 8, "-7": -8, "-31": -32}
"""Places nobody proposes: how much a pair feels its position at all."""

WINDOWS = {"window - 1": -1, "window": 0, "window + 1": 1}
"""Keys that the draft's sliding layers read; ``FAR`` with the first only."""

OWN = {"as shipped": (0, False, 1), "accepted keys only": (0, True, 5), "as shipped, 1 back": (-1, False, 5)}
"""Assisted generation: what is added to the position, whether the keys of refused drafts are cut off, and every how manieth prompt."""


class Repaired(SinglePositionMultiTokenCandidateGenerator):  # type: ignore[misc]
    """transformers' drafts for a Gemma 4 assistant, constructible, and counting.

    5.19 calls the constructor without ``input_ids`` and ``model_kwargs`` (generation/utils.py:1338), which it calls deprecated and still
    requires (generation/candidate_generator.py:1259): a TypeError for every call of ``generate`` with such an assistant.
    """

    calls = 0
    accepted_only = False

    def __init__(self, **given: Any) -> None:
        super().__init__(input_ids=None, model_kwargs={}, **given)

    def get_candidates(self, input_ids: Any, model_kwargs: Any, model_outputs: Any, is_first_iteration: bool, **more: Any) -> Any:
        """As transformers', which leaves the keys of drafts just refused in: one in full layers (:1330), all of them in sliding layers."""
        type(self).calls += not is_first_iteration  # the first one is the prefill
        if self.accepted_only and not is_first_iteration:
            states = model_outputs.shared_kv_states
            refused = states["full_attention"][0].shape[2] - (input_ids.shape[1] - 1)  # the last token has no key yet
            if refused:
                model_outputs.shared_kv_states = {kind: tuple(part[:, :, :-refused] for part in pair) for kind, pair in states.items()}
        return super().get_candidates(
            input_ids, model_kwargs=model_kwargs, model_outputs=model_outputs, is_first_iteration=is_first_iteration, **more
        )


@contextmanager
def moved(assistant: Any, by: int) -> Any:
    """Within it the assistant's query stands ``by`` positions further."""

    def move(_module: Any, args: Any, kwargs: Any) -> Any:
        return args, kwargs | {"position_ids": kwargs["position_ids"] + by}

    handle = assistant.register_forward_pre_hook(move, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


def load(family: str) -> tuple[Any, Any, Any]:
    """Processor, target and assistant, float32."""
    path = checkpoints.SHIPPED / family
    target = AutoModelForImageTextToText.from_pretrained(path, dtype=torch.float32).eval()
    assistant = Gemma4AssistantForCausalLM.from_pretrained(f"{path}-assistant", dtype=torch.float32).eval()
    target.generation_config.eos_token_id = None  # 64 tokens from everyone, as the engine with ignore_eos
    return AutoProcessor.from_pretrained(path), target, assistant


def inputs_of(processor: Any, prompt: dict[str, Any]) -> Any:
    from PIL import Image

    images = [Image.open(path).convert("RGB") for path in prompt["images"]]
    return processor(text=[prompt["text"]], return_tensors="pt", add_special_tokens=False, **({"images": [images]} if images else {}))


def batch_of(target: Any, inputs: Any, answer: list[int]) -> Any:
    """Prompt and answer as one row."""
    ids = np.asarray([inputs["input_ids"][0].tolist() + answer], np.int32)
    soft = ids == target.config.image_token_id
    starts = soft & ~np.pad(soft, ((0, 0), (1, 0)))[:, :-1]
    block = np.where(soft, np.cumsum(starts, 1) - 1, -1)
    batch = to_device(Rows(ids, np.zeros(ids.shape), np.zeros(ids.shape), block, [[]]), None, target.config.text_config, "cpu")
    if "pixel_values" in inputs:
        batch.pixel_values, batch.image_position_ids = inputs["pixel_values"], inputs["image_position_ids"]
    return batch


def windowed(batch: Any, window: int) -> Any:
    """The batch for a draft whose sliding layers read ``window`` keys."""
    at = torch.arange(batch.ids.shape[1])
    seen = (at[:, None] >= at[None, :]) & (at[:, None] - at[None, :] < window)
    mask = torch.where(seen, 0.0, torch.finfo(torch.float32).min)[None, None]
    return dataclasses.replace(batch, masks=batch.masks | {"sliding_attention": mask})


@torch.inference_mode()
def reference(
    family: str, arms: list[tuple[str, str]], prompts: list[dict[str, Any]], answers: list[list[int]]
) -> Iterator[dict[str, Any]]:
    """Steps of each arm (position, window), over 64 tokens (``steps``) and to the end of the turn (``own_tokens`` in ``own_steps``)."""
    processor, target, assistant = load(family)
    stops = set(assistant.generation_config.eos_token_id)
    window = target.config.text_config.sliding_window
    found: dict[tuple[str, str], dict[str, list[int]]] = {arm: {"steps": [], "own_tokens": [], "own_steps": []} for arm in arms}
    started, other = time.time(), 0
    for prompt, answer in zip(prompts, answers, strict=True):
        inputs = inputs_of(processor, prompt)
        first = inputs["input_ids"].shape[1] - 1
        batch = batch_of(target, inputs, answer)
        output = hidden_states(target, batch, shared_kv=True)
        other += target.lm_head(output.last_hidden_state[0, first:-1]).argmax(-1).tolist() != answer
        own = next((i for i, token in enumerate(answer) if token in stops), len(answer) - 1)
        for position, keys in arms:
            seen = windowed(batch, window + WINDOWS[keys])
            seen.positions = batch.positions + (POSITIONS | FAR)[position]
            matched = matched_drafts(target, assistant, seen, output, asked.STEPS)[0, first:].tolist()
            counts = found[position, keys]
            counts["steps"].append(verify_steps(matched, len(answer) - 1))
            counts["own_tokens"].append(own)
            counts["own_steps"].append(verify_steps(matched, own))
    seconds = round(time.time() - started, 1)
    for (position, keys), counts in found.items():
        yield {"arm": f"{position}, {keys}", "other_tokens": other, "seconds": seconds, **counts}


@torch.inference_mode()
def assisted(family: str, arm: str, prompts: list[dict[str, Any]], answers: list[list[int]]) -> dict[str, Any]:
    """transformers' own loop; ``steps`` are its calls of the target after the prefill."""
    processor, target, assistant = load(family)
    by, Repaired.accepted_only, _ = OWN[arm]
    generation.SinglePositionMultiTokenCandidateGenerator = Repaired
    steps, started, other = [], time.time(), 0
    with moved(assistant, by):
        for prompt, answer in zip(prompts, answers, strict=True):
            inputs = inputs_of(processor, prompt)
            Repaired.calls = 0
            said = target.generate(**inputs, assistant_model=assistant, do_sample=False, max_new_tokens=asked.NEW_TOKENS)
            other += said[0, inputs["input_ids"].shape[1] :].tolist() != answer
            steps.append(Repaired.calls)
    return {"arm": arm, "steps": steps, "other_tokens": other, "seconds": round(time.time() - started, 1)}


def run(work: Path, raw: Path, every: int, done: set[tuple[str, str, str]]) -> None:
    """What is not in ``done`` of ``reference`` and ``transformers``, on every ``every``-th prompt."""
    torch.set_num_threads(1)
    prompts = asked.prompts(work)[::every]
    wanted = [(position, keys) for position in POSITIONS for keys in WINDOWS] + [(position, "window - 1") for position in FAR]
    for family in asked.FAMILIES:
        answers = json.loads((work / f"{family}.json").read_text())
        arms = [arm for arm in wanted if (family, "reference", ", ".join(arm)) not in done]
        for record in reference(family, arms, prompts, answers) if arms else ():
            asked.write(raw, family=family, side="reference", every=every, **record)
            print(family, "reference", record["arm"], f"{record['seconds']:.0f} s for all", flush=True)
        for arm, (_, _, sparse) in OWN.items():
            if (family, "transformers", arm) not in done:
                step = max(1, sparse // every)
                record = assisted(family, arm, prompts[::step], answers[::step])
                asked.write(raw, family=family, side="transformers", every=every * step, **record)
                print(family, "transformers", arm, f"{record['seconds']:.0f} s", flush=True)
