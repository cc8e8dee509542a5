"""Thirty images, one colour each: both arms, with the faster ways to prefill and to see and without, name them all, in the same tokens."""

import random
from pathlib import Path
from typing import Any

import pytest

from sglang_gemma4.quality.questions import colour_named
from sglang_gemma4.tiny import checkpoints, images, world
from tests.harness.engine_fork import Group, Nursery, Output
from tests.harness.left_to_sglang import left

FASTER = ("YOCO", "PREFILL_GRAPH", "BATCHED_VISION")
GRAPHS = {"disable_cuda_graph": False, "disable_decode_cuda_graph": True}
QUESTIONS = 30


@pytest.mark.parametrize(("family", "declined"), [("tiny-e2b", set()), ("tiny-26b-a4b", {"yoco"})], ids=["layers share KV", "none does"])
def test_thirty_of_thirty_in_both_arms(family: str, declined: set[str], nursery: Nursery, tmp_path: Path) -> None:
    """Where no layers share KV there is nothing for the fast prefill to leave out."""
    from transformers import AutoTokenizer

    model, rng = checkpoints.SHIPPED / family, random.Random(0)
    tokenizer: Any = AutoTokenizer.from_pretrained(model)
    colours, texts, paths = [], [], []
    for number in range(QUESTIONS):
        colours.append(rng.choice(world.COLOURS))
        paths.append(str(tmp_path / f"{number}.png"))
        images.draw(images.HELD_OUT_SEED + number, colours[-1]).save(paths[-1])
        asked = [{"type": "image"}, {"type": "text", "text": rng.choice(images.ASKS)}]
        texts.append(tokenizer.apply_chat_template([{"role": "user", "content": asked}], tokenize=False, add_generation_prompt=True))
    group = Group(texts, {"max_new_tokens": 8, "ignore_eos": False}, paths)
    arms: list[list[Output]] = [
        nursery.run(model, [group], env | {"TEST_INSTRUMENTS": "recorded_graphs:install"}, max_total_tokens=4096, **GRAPHS)[0]
        for env in ({f"SGLANG_GEMMA4_{name}": on for name in FASTER} for on in "01")
    ]
    for arm in arms:
        assert [colour_named(answer.text) for answer in arm] == colours
    without, faster = arms
    assert [answer.token_ids for answer in faster] == [answer.token_ids for answer in without]
    assert "REPLAYED" not in without[0].log
    assert "REPLAYED" in faster[0].log
    assert {"yoco", "prefill_graph", "batched_vision"} & set(left(faster[0].log)) == declined
