"""Images on SGLang's triton backend, interpreted, in float32: transformers' tokens and log-probabilities.

Stock's masks miss them: ``crash_repro/image_masks.py``.
"""

import json
import re
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from sglang_gemma4.tiny import checkpoints, images
from tests.engine.test_oracle import LOGPROB_TOLERANCE
from tests.harness.engine_fork import INTERPRETED, Group, Nursery, Output, without
from tests.harness.left_to_sglang import left
from tests.harness.oracles.transformers_oracle import Greedy, decode

Oracle = Callable[[str], list[Greedy]]
NEW_TOKENS = 6
LEVELS = 0.02
"""Of a log-probability, over an int8 cache."""
SWITCH = "SGLANG_GEMMA4_MEDIA_FIXES"
SIZES = (("red", (96, 96)), ("blue", (200, 60)), ("green", (50, 170)))
WORDS = "The ruler of the land went along the river to the town and came back again before the night. "
PROMPTS = (
    ("<bos>There is no picture here, only a text that goes on.", ()),
    ("<bos>What is this <|image|> called?", (1,)),
    ("<bos>" + WORDS * 2 + "<|image|> and then <|image|> and <|image|>: which is it?", (0, 1, 2)),
)


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Text alone, one image, three of other sizes behind a text."""
    folder, paths = tmp_path_factory.mktemp("pictures"), []
    for number, (colour, size) in enumerate(SIZES):
        paths.append(str(folder / f"{number}.png"))
        images.draw(number, colour).resize(size).save(paths[-1])
    return [{"text": text, "images": [paths[number] for number in own]} for text, own in PROMPTS]


@pytest.fixture(scope="module")
def oracle(prompts: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> Oracle:
    """transformers in float32, by family."""
    folder = tmp_path_factory.mktemp("oracle")
    return cache(lambda family: decode(checkpoints.SHIPPED / family, prompts, NEW_TOKENS, folder))


def serve(
    nursery: Nursery, family: str, prompts: list[dict[str, Any]], env: dict[str, str], logprobs: bool = True, **options: Any
) -> list[Output]:
    texts = [one["text"] if one["images"] else one["text"].removeprefix("<bos>") for one in prompts]  # of a text SGLang adds it
    group = Group(texts, {"max_new_tokens": NEW_TOKENS}, [one["images"] for one in prompts], logprobs)
    environment = {"TEST_INSTRUMENTS": "image_recorder:install", **env}
    return nursery.run(checkpoints.SHIPPED / family, [group], environment, 500.0, attention_backend="triton", **options)[0]


def wrong(outputs: list[Output], oracle: list[Greedy]) -> list[bool]:
    """Which answers have other tokens or log-probabilities than transformers'."""
    return [
        output.token_ids != reference.token_ids
        or max(abs(a - b) for a, b in zip(output.logprobs, reference.logprobs, strict=True)) > LOGPROB_TOLERANCE
        for output, reference in zip(outputs, oracle, strict=True)
    ]


def test_images_cut_by_chunks(interpreting: Nursery, prompts: list[dict[str, Any]], oracle: Oracle) -> None:
    """Prompts over several chunks, each image longer than one or across two."""
    ours = serve(interpreting, "tiny-26b-a4b", prompts, {SWITCH: "1"}, chunked_prefill_size=48)
    assert wrong(ours, oracle("tiny-26b-a4b")) == [False, False, False]
    assert "MASKED" in ours[0].log


def test_a_model_whose_images_are_causal(interpreting: Nursery, prompts: list[dict[str, Any]], oracle: Oracle) -> None:
    ours = serve(interpreting, "tiny-e2b", prompts, {SWITCH: "1"})
    assert wrong(ours, oracle("tiny-e2b")) == [False, False, False]
    assert "MASKED" not in ours[0].log


def test_in_a_mixed_batch(interpreting: Nursery, prompts: list[dict[str, Any]], oracle: Oracle) -> None:
    """The second prompt's images are prefilled beside the first one's decode rows. SGLang mixes no batch that returns log-probabilities."""
    two, options = [prompts[0], prompts[2]], {"enable_mixed_chunk": True, "chunked_prefill_size": 80}
    ours = serve(interpreting, "tiny-26b-a4b", two, {SWITCH: "1"}, False, **options)
    assert "MIXED batch" in ours[0].log
    assert [output.token_ids for output in ours] == [oracle("tiny-26b-a4b")[number].token_ids for number in (0, 2)]


def test_our_prefill_kernel_masks_images_too(interpreting: Nursery, prompts: list[dict[str, Any]], oracle: Oracle) -> None:
    ours = serve(interpreting, "tiny-26b-a4b", prompts, {"SGLANG_GEMMA4_ATTENTION": "1"}, chunked_prefill_size=48)
    assert wrong(ours, oracle("tiny-26b-a4b")) == [False] * len(prompts)
    assert "REACHED a layer" in ours[0].log
    assert "SGLang's extend kernel" not in ours[0].log


def test_images_over_an_int8_cache(interpreting: Nursery, prompts: list[dict[str, Any]], oracle: Oracle) -> None:
    """Sliding layers give what float32 attention over the dequantised keys gives where tokens of an image see its later ones."""
    env = {**without(*INTERPRETED), "SGLANG_GEMMA4_ATTENTION": "1", SWITCH: "1"}
    ours = serve(interpreting, "tiny-26b-a4b", prompts, env, chunked_prefill_size=48, kv_cache_dtype="int8_per_token_head")
    layers = [(float(whole), float(causal)) for whole, causal in re.findall(r"LEVELS (\S+) from whole images, (\S+) from", ours[0].log)]
    assert layers
    assert max(whole for whole, _ in layers) < 1e-4
    assert max(causal for _, causal in layers) > 1e-2, "it would be seen"
    for output, reference in zip(ours, oracle("tiny-26b-a4b"), strict=True):
        assert output.token_ids == reference.token_ids
        assert output.logprobs == pytest.approx(reference.logprobs, abs=LEVELS)


def test_beside_fast_prefill(interpreting: Nursery, prompts: list[dict[str, Any]], tmp_path: Path) -> None:
    """A model with both two-way images and layers that share KV; Google has published none."""
    model = tmp_path / "two-way"
    shutil.copytree(checkpoints.SHIPPED / "tiny-e2b", model)
    config = json.loads((model / "config.json").read_text())
    config["text_config"]["use_bidirectional_attention"] = "vision"
    (model / "config.json").write_text(json.dumps(config))
    one = prompts[1:2]
    ours = serve(interpreting, str(model), one, {SWITCH: "1", "SGLANG_GEMMA4_YOCO": "1"})
    assert wrong(ours, decode(model, one, NEW_TOKENS, tmp_path)) == [False]
    assert "MASKED" in ours[0].log
    assert "a prefill goes through all layers: use_bidirectional_attention is 'vision'" in left(ours[0].log)["yoco"]
