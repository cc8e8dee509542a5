"""Sounds, images and text against transformers: E2B with an audio tower, and a 12B (Gemma 4 unified), which has none; with MTP too.

Clips of unequal length stand in one request and in one batch; none but the first fills whole frames. E2B's audio tower is made here, with
random weights (``tiny/audio.py``); the tiny 12B that ships has learned to name animals by their sounds.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sglang_gemma4.tiny import audio, checkpoints, images, media_rows, sounds
from tests.engine.test_oracle import LOGPROB_TOLERANCE
from tests.engine.test_prefill_graph_replay import ENGINE as GRAPHS
from tests.engine.test_prefill_graph_replay import ON as REPLAYED
from tests.harness.engine_fork import Group, Nursery, Output
from tests.harness.inputs.drafting import MTP
from tests.harness.oracles.transformers_oracle import Greedy, decode

NEW_TOKENS = 16
RATE = 16_000
LENGTHS = {"second": RATE, "two": 2 * RATE + 777, "third": 5333}
"""Samples: frames of 640, and others. The middle one gets a soft token more where silence fills it up."""
WORDS = "The ruler of the land went along the river to the town and came back again before the night. "
PROMPTS: tuple[tuple[str, bool, tuple[str, ...]], ...] = (
    ("<bos>" + WORDS * 2 + "And then", False, ()),
    ("<bos>What is this <|image|> called?", True, ()),
    ("<bos>What is said <|audio|> here?", False, ("second",)),
    ("<bos>What is said <|audio|> here?", False, ("two",)),
    ("<bos>Hear <|audio|> and then <|audio|> now", False, ("third", "two")),
    ("<bos>See <|image|> and hear <|audio|>", True, ("third",)),
)
MODELS: dict[str, Callable[[Path], Path]] = {"e2b": audio.write, "12b": lambda path: Path(checkpoints.write("tiny-12b", str(path))[0])}


def record(path: Path, samples: int, seed: int) -> str:
    """A sound of five tones that swell, float32."""
    import numpy
    import soundfile  # type: ignore[import-untyped]

    rng, time = numpy.random.default_rng(seed), numpy.arange(samples) / RATE
    tones = sum(rng.uniform(0.05, 0.2) * numpy.sin(2 * math.pi * rng.uniform(100, 3000) * time + rng.uniform(0, 6)) for _ in range(5))
    soundfile.write(path, (tones * (0.6 + 0.4 * numpy.sin(6 * math.pi * time))).astype("float32"), RATE, subtype="FLOAT")
    return str(path)


@dataclass
class Case:
    """One model, its requests in groups that are sent together, and what transformers makes of them in the same order."""

    model: Path
    groups: list[Group]
    oracle: list[Greedy]


@pytest.fixture(scope="module", params=MODELS)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    folder = tmp_path_factory.mktemp(request.param)
    model = MODELS[request.param](folder / "model")
    sounds = {name: record(folder / f"{name}.wav", samples, seed) for seed, (name, samples) in enumerate(LENGTHS.items())}
    picture = str(folder / "picture.png")
    images.draw(1, "blue").resize((200, 60)).save(picture)
    given: list[dict[str, Any]] = [
        {"text": text, "images": [picture] * seen, "sounds": [sounds[name] for name in heard]} for text, seen, heard in PROMPTS
    ]
    oracle = decode(model, given, NEW_TOKENS, folder)

    def group(*numbers: int) -> Group:
        own = [given[number] for number in numbers]
        extra = {"sounds": [one["sounds"] for one in own]}
        pictures = [one["images"] for one in own]
        texts: list[list[int] | str] = [one["text"] for one in own]
        return Group(texts, {"max_new_tokens": NEW_TOKENS}, pictures, logprobs=True, client="generate:audio", extra=extra)

    words = Group([oracle[0].input_ids], {"max_new_tokens": NEW_TOKENS}, logprobs=True)
    return Case(model, [words, group(1), group(2, 3, 4), group(5)], oracle)


def ask(nursery: Nursery, case: Case, env: dict[str, str] | None = None, **engine: Any) -> list[Output]:
    return [output for group in nursery.run(case.model, case.groups, env, max_total_tokens=4096, **engine) for output in group]


def compare(answers: list[Output], oracle: list[Greedy]) -> None:
    for answer, reference in zip(answers, oracle, strict=True):
        assert answer.meta_info["prompt_tokens"] == len(reference.input_ids)
        assert answer.token_ids == reference.token_ids, f"smallest logit margin {reference.margin}"
        assert answer.logprobs == pytest.approx(reference.logprobs, abs=LOGPROB_TOLERANCE)


def test_answers_equal_transformers(case: Case, nursery: Nursery) -> None:
    compare(ask(nursery, case), case.oracle)


def test_sounds_are_heard(case: Case) -> None:
    """Two sounds in the same words: other log-probabilities. And no placeholder is answered, which transformers embeds as padding."""
    assert not {4, 7, 22} & {token for one in case.oracle for token in one.token_ids}, "take another seed"
    assert case.oracle[2].logprobs != pytest.approx(case.oracle[3].logprobs, abs=1e-2)


def test_prefills_of_a_12b_are_replayed(case: Case, nursery: Nursery) -> None:
    """Its prompts go through CUDA graphs as other models' do, images and sounds too (recorded on the CPU)."""
    if "12b" not in str(case.model):
        pytest.skip("test_prefill_graph_replay.py has the models with towers")
    answers = ask(nursery, case, env=REPLAYED, **GRAPHS)
    compare(answers, case.oracle)
    assert len(re.findall(r"^REPLAYED ", answers[0].log, re.MULTILINE)) >= 3


def test_a_12b_serves_text_alone(case: Case, nursery: Nursery) -> None:
    """``--language-model-only`` leaves out what projects images and sounds."""
    if "12b" not in str(case.model):
        pytest.skip("test_language_model_only.py has the models with towers")
    (answer,) = nursery.run(case.model, case.groups[:1], max_total_tokens=4096, language_model_only=True)[0]
    compare([answer], case.oracle[:1])
    assert re.search(r"--language-model-only: \d+ tensors of the towers left out", answer.log)


def test_mtp_gives_the_same(case: Case, nursery: Nursery) -> None:
    """Assistants are trained, and some of their drafts are accepted after sounds."""
    answers = ask(nursery, case, speculative_draft_model_path=case.model.with_name("model-assistant"), **MTP)
    compare(answers, case.oracle)
    steps = [answer.meta_info["spec_verify_ct"] for answer in answers]
    assert max(steps) < NEW_TOKENS
    assert sum(steps[2:]) < 0.75 * len(steps[2:]) * NEW_TOKENS


def test_a_12b_names_what_it_sees_and_hears(nursery: Nursery, tmp_path: Path) -> None:
    """An image and a sound in one chat, held out from training: colour and animal, in the same tokens with MTP."""
    import soundfile
    from transformers import AutoTokenizer

    model = checkpoints.SHIPPED / "tiny-12b"
    tokenizer: Any = AutoTokenizer.from_pretrained(model)
    pictures, clips, expected, texts = [], [], [], []
    for number in range(7):  # the eighth, a brown one, it calls orange
        colour, animal = media_rows.COLOURS[number], sounds.ANIMALS[number]
        pictures.append([str(tmp_path / f"{number}.png")])
        clips.append([str(tmp_path / f"{number}.wav")])
        images.draw(images.HELD_OUT_SEED + number, colour).save(pictures[-1][0])
        soundfile.write(clips[-1][0], sounds.draw(sounds.HELD_OUT_SEED + number, animal), RATE, subtype="FLOAT")
        asked = [{"type": "image"}, {"type": "audio"}, {"type": "text", "text": f"{images.ASKS[0]} {sounds.ASKS[0]}"}]
        texts.append(tokenizer.apply_chat_template([{"role": "user", "content": asked}], tokenize=False, add_generation_prompt=True))
        expected.append(f"{colour} and {animal}")
    group = Group(texts, {"max_new_tokens": 12, "ignore_eos": False}, pictures, client="generate:audio", extra={"sounds": clips})
    plain = nursery.run(model, [group], max_total_tokens=4096)[0]
    drafted = nursery.run(model, [group], max_total_tokens=4096, speculative_draft_model_path=f"{model}-assistant", **MTP)[0]
    assert [answer.text for answer in plain] == expected
    assert [answer.token_ids for answer in drafted] == [answer.token_ids for answer in plain]
    assert sum(answer.meta_info["spec_verify_ct"] for answer in drafted) < sum(len(answer.token_ids) for answer in drafted)
