"""Images on the CPU engine: greedy tokens equal transformers', however the prompt is cut and cached."""

from typing import Any

import pytest

from sglang_gemma4.tiny import families, images
from tests.harness.engine_fork import Group, Nursery, without
from tests.harness.oracles.reference import CHECKPOINTS, greedy, load

TOKENS = 10


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Three images of different shapes, as files."""
    folder = tmp_path_factory.mktemp("pictures")
    paths = []
    for i, (colour, size) in enumerate((("red", (96, 96)), ("blue", (200, 60)), ("green", (50, 170)))):
        path = folder / f"{i}.png"
        images.draw(i, colour).resize(size).save(path)
        paths.append(str(path))
    return paths


def questions(pictures: list[str]) -> tuple[list[str], list[list[str]]]:
    """Prompts with no, one and two images, and two that differ only after the same image."""
    texts = [
        "What is this <|image|> called by the ruler of the land?",
        "<|image|> and then <|image|> which is it?",
        "<|image|> and then <|image|> where was it?",
        "There is no picture here, only a text that goes on.",
    ]
    return texts, [[pictures[0]], [pictures[1], pictures[2]], [pictures[1], pictures[2]], []]


def reference(name: str, texts: list[str], files: list[list[str]]) -> list[list[int]]:
    """transformers in float32; a server puts <bos> in front of a raw text."""
    from PIL import Image
    from transformers import AutoProcessor

    model, processor = load(name), AutoProcessor.from_pretrained(CHECKPOINTS / name)
    answers = []
    for text, own in zip(texts, files, strict=True):
        inputs: Any = processor(text="<bos>" + text, images=[Image.open(file) for file in own] or None, return_tensors="pt")
        answers.append(greedy(model, dict(inputs), TOKENS))
    return answers


@pytest.mark.parametrize(
    ("name", "options"),
    [
        (families.TINY[0], {"page_size": 16, "chunked_prefill_size": 48}),
        (families.TINY[1], {"chunked_prefill_size": 30}),
        (families.TINY[2], {"chunked_prefill_size": 30}),
        (families.TINY[2], {}),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(f"{k}={v}" for k, v in value.items()) or "whole",
)
def test_images_equal_transformers(name: str, options: dict[str, Any], nursery: Nursery, pictures: list[str]) -> None:
    texts, files = questions(pictures)
    expected = reference(name, texts, files)
    sampling = {"max_new_tokens": TOKENS}
    together = Group(texts, sampling, files)
    single = [Group([texts[i]], sampling, [files[i]], flush=i == 0) for i in range(len(texts))]
    groups = nursery.run(CHECKPOINTS / name, [together, *single], **options)
    assert [output.token_ids for output in groups[0]] == expected
    assert [group[0].token_ids for group in groups[1:]] == expected
    assert groups[3][0].meta_info["cached_tokens"] > 0, "the third prompt shares both images with the second"


def test_an_image_waits_for_memory_that_others_hold_or_is_refused(nursery: Nursery, pictures: list[str]) -> None:
    """128 sliding tokens, chunks of 48: the image of 60 waits for the first request, that of 64 behind a long text for nobody."""
    words = "The ruler of the land went along the river to the town and came back again before the night. "
    texts = [
        "There was a song about the town. " * 6,
        words + "What is <|image|> called?",
        words * 3 + "What is <|image|> called?",
        "What is <|image|> called?",
    ]
    files = [[], [pictures[1]], [pictures[0]], [pictures[0]]]
    expected = reference("tiny-26b-a4b", texts, files)
    together = Group(texts[:2], {"max_new_tokens": 30 * TOKENS, "ignore_eos": True}, files[:2])
    after = Group(texts[2:], {"max_new_tokens": TOKENS}, files[2:], client="generate:refusals")
    env = {**without("pool_checks", "swa_sizing"), "TEST_INSTRUMENTS": "image_recorder:slow"}
    pools = {"chunked_prefill_size": 48, "max_total_tokens": 1024, "swa_full_tokens_ratio": 0.125}
    (text, waiting), (refused, whole) = nursery.run(CHECKPOINTS / "tiny-26b-a4b", [together, after], env, **pools)
    assert "ends inside an image" not in text.log
    assert [text.token_ids[:TOKENS], waiting.token_ids[:TOKENS], whole.token_ids] == [expected[0], expected[1], expected[3]]
    assert "WAITED for 60 tokens" in text.log
    assert not refused.token_ids
    assert "takes 64 tokens, which are prefilled together, and the KV pools have room for 55" in refused.text
    assert "send smaller or fewer images in a row, or start the server with a larger --mem-fraction-static" in refused.text
