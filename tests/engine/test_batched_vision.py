"""The vision tower over packed images: transformers' numbers, one call for a batch, and what declines."""

import re
from typing import Any

from sglang_gemma4.tiny import checkpoints
from tests.engine.test_image_masks import NEW_TOKENS, Oracle, oracle, prompts, wrong  # noqa: F401 - two fixtures
from tests.harness.engine_fork import Group, Nursery, Output

SWITCH = "SGLANG_GEMMA4_BATCHED_VISION"


def serve(
    nursery: Nursery, family: str, asked: list[dict[str, Any]], instruments: str, env: dict[str, str], **options: Any
) -> list[Output]:
    texts = [one["text"] if one["images"] else one["text"].removeprefix("<bos>") for one in asked]  # of a text SGLang adds it
    group = Group(texts, {"max_new_tokens": NEW_TOKENS}, [one["images"] for one in asked], logprobs=True)
    return nursery.run(checkpoints.SHIPPED / family, [group], {"TEST_INSTRUMENTS": instruments, **env}, 500.0, **options)[0]


def test_triton_s_attention_over_packed_images(
    interpreting: Nursery,
    prompts: list[dict[str, Any]],  # noqa: F811
    oracle: Oracle,  # noqa: F811
) -> None:
    """``triton_attn`` is what SGLang takes on cards that are no Hopper; its stock form attends to the padding (``vision_padding.py``)."""
    family, backends = "tiny-26b-a4b", {"attention_backend": "triton", "mm_attention_backend": "triton_attn"}
    arms = [serve(interpreting, family, prompts, "image_recorder:install", {SWITCH: value}, **backends) for value in ("1", "0")]
    ours, stock = arms
    assert wrong(ours, oracle(family)) == [False, False, False]
    assert wrong(stock, oracle(family))[:2] == [False, True], "the padded image is attended to"
    calls = [re.findall(r"TOWER (\d+) rows of (\d+) patches", arm[0].log) for arm in arms]
    assert len(calls[0]) < len(calls[1])
    assert {patches for _, patches in calls[1]} == {"630"}, "stock's images are padded"
    assert sum(int(patches) for _, patches in calls[0]) < sum(int(rows) * int(patches) for rows, patches in calls[1])


def test_a_tower_of_the_released_width_equals_transformers(nursery: Nursery, prompts: list[dict[str, Any]]) -> None:  # noqa: F811
    """Images of four sizes, a video's frames and several calls, in float32 with torch's attention, where stock masks too, and with
    a backend that neither we give lengths nor SGLang serves Gemma 4 on (flashinfer_cudnn)."""
    outputs = serve(nursery, "tiny-26b-a4b", prompts[:2], "vision_oracle:install", {SWITCH: "1"})
    (line,) = re.findall(r"TOWERS .*", outputs[0].log)
    errors = {name: float(value) for name, value in re.findall(r"(\w+)=(\S+)", line)}
    print(errors)
    assert sorted(errors) == ["in_chunks", "other_backend", "packed", "stock", "video"]
    assert max(errors.values()) < 2e-5


def test_without_it_the_tower_is_called_for_each_image(
    nursery: Nursery,
    prompts: list[dict[str, Any]],  # noqa: F811
    oracle: Oracle,  # noqa: F811
) -> None:
    ours, stock = (serve(nursery, "tiny-26b-a4b", prompts[2:3], "image_recorder:install", {SWITCH: value}) for value in ("1", "0"))
    assert wrong(ours, oracle("tiny-26b-a4b")[2:3]) == [False]
    assert ours[0].log.count("TOWER") == 1
    assert stock[0].log.count("TOWER") == 3
