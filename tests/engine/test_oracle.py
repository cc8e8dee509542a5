"""SGLang in float32 against transformers on the trained tiny families: same tokens, same log-probabilities; MTP against plain decoding."""

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sglang_gemma4.tiny import chat_format, checkpoints, dialogues, images
from tests.harness.engine_fork import Group, Nursery, Output
from tests.harness.inputs.drafting import MTP
from tests.harness.oracles.transformers_oracle import Greedy, decode

FAMILIES = ("tiny-26b-a4b", "tiny-e2b", "tiny-31b")
NEW_TOKENS = 40
LOGPROB_TOLERANCE = 1e-4
ACCEPT_LENGTH = (2.0, 3.7)
ENGINE: dict[str, Any] = {"max_total_tokens": 16384, "max_running_requests": 8}


@dataclass
class Case:
    """One family's prompts with what transformers makes of them."""

    model: Path
    prompts: list[dict[str, Any]]
    oracle: list[Greedy]

    def groups(self) -> list[Group]:
        """The text prompts as token ids and the image prompts as text with images, greedy, with log-probabilities."""
        sampling = {"max_new_tokens": NEW_TOKENS}
        text = [i for i, prompt in enumerate(self.prompts) if not prompt["images"]]
        seen = [prompt for prompt in self.prompts if prompt["images"]]
        return [
            Group([self.oracle[i].input_ids for i in text], sampling, logprobs=True),
            Group([prompt["text"] for prompt in seen], sampling, images=[prompt["images"] for prompt in seen], logprobs=True),
        ]


def make_prompts(folder: Path) -> list[dict[str, Any]]:
    """24 held-out text prompts (8 of them longer than two windows) and 4 with images, one of these with two."""
    rng = random.Random(20)
    text = [dialogues.chat(rng, "held_out") for _ in range(8)]
    text += [dialogues.story_chat(rng, "held_out") for _ in range(4)]
    text += [dialogues.four_choice_chat(rng, "held_out") for _ in range(2)]
    text += [dialogues.tool_chat(rng, "held_out") for _ in range(2)]
    text += [dialogues.long_chat(rng, "held_out", sentences=20) for _ in range(8)]
    prompts = [{"text": chat_format.render(dialogue, prompt_only=True), "images": []} for dialogue in text]
    for number, count in enumerate((1, 1, 1, 2)):
        dialogue, colours = images.colour_chat(rng, count)
        paths = []
        for position, colour in enumerate(colours):
            path = folder / f"{number}-{position}.png"
            images.draw(7000 + 10 * number + position, colour).save(path)
            paths.append(str(path))
        prompts.append({"text": chat_format.render(dialogue, prompt_only=True), "images": paths})
    return prompts


@pytest.fixture(scope="module", params=FAMILIES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    folder = tmp_path_factory.mktemp(request.param)
    model, prompts = checkpoints.SHIPPED / request.param, make_prompts(folder)
    return Case(model, prompts, decode(model, prompts, NEW_TOKENS, folder))


@pytest.fixture(scope="module")
def plain(case: Case, nursery: Nursery) -> list[Output]:
    """SGLang's answers without speculation, in the order of the prompts."""
    return [output for group in nursery.run(case.model, case.groups(), **ENGINE) for output in group]


def test_prompts_are_what_they_should_be(case: Case) -> None:
    window = 64 if "e2b" not in case.model.name else 32
    assert len([p for p in case.prompts if not p["images"]]) >= 20
    assert len([g for g in case.oracle if len(g.input_ids) > 2 * window]) >= 8


def test_greedy_tokens_equal_transformers(case: Case, plain: list[Output]) -> None:
    for prompt, oracle, output in zip(case.prompts, case.oracle, plain, strict=True):
        assert output.meta_info["prompt_tokens"] == len(oracle.input_ids)
        assert output.token_ids == oracle.token_ids, f"{prompt}\nsmallest logit margin {oracle.margin}"


def test_log_probabilities_equal_transformers(case: Case, plain: list[Output]) -> None:
    worst = max(
        abs(a - b) for oracle, output in zip(case.oracle, plain, strict=True) for a, b in zip(oracle.logprobs, output.logprobs, strict=True)
    )
    assert worst <= LOGPROB_TOLERANCE


def test_mtp_gives_the_same_tokens_in_fewer_steps(case: Case, plain: list[Output], nursery: Nursery) -> None:
    draft = case.model.with_name(case.model.name + "-assistant")
    groups = case.groups()
    answers = [output for group in nursery.run(case.model, groups, speculative_draft_model_path=draft, **MTP, **ENGINE) for output in group]
    for prompt, without, with_ in zip(case.prompts, plain, answers, strict=True):
        assert with_.token_ids == without.token_ids, prompt
        assert with_.logprobs == pytest.approx(without.logprobs, abs=LOGPROB_TOLERANCE)
    steps = sum(output.meta_info["spec_verify_ct"] for output in answers)
    accept_length = sum(len(output.token_ids) for output in answers) / steps
    print(f"{case.model.name}: accept length {accept_length:.2f} over {steps} verify steps")
    assert ACCEPT_LENGTH[0] <= accept_length <= ACCEPT_LENGTH[1]
