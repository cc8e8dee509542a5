"""Every faster path at once, interpreted, in float32, under MTP on the triton backend: transformers' tokens and log-probabilities.

26B-A4B is served overlapped, as on a card: triton asks for no lengths on the host, and the host sums none on the device.
"""

import json
from itertools import groupby
from typing import Any

import pytest

from sglang_gemma4.tiny import checkpoints, images
from tests.engine.test_oracle import LOGPROB_TOLERANCE
from tests.harness.engine_fork import Group, Nursery, Output, without
from tests.harness.inputs.drafting import MTP
from tests.harness.left_to_sglang import left
from tests.harness.oracles.transformers_oracle import decode

NEW_TOKENS = 6
FASTER = ("ATTENTION", "NORMS", "QKV", "EXPERTS", "FEW_ROW_LINEAR", "FROZEN_CHAIN", "YOCO", "BATCHED_VISION")
CHUNK = 48
WORDS = "The ruler of the land went along the river to the town and came back again before the night. "
PROMPTS = (
    ("<bos>" + WORDS * 2 + "And then", ()),
    ("<bos>What is this <|image|> called?", (1,)),
    ("<bos>Which is <|image|>, which <|image|>, and which <|image|>?", (0, 2, 3)),
)
SIZES = (("red", (96, 96)), ("blue", (200, 60)), ("yellow", (400, 25)), ("black", (48, 24)))
"""The last two make the longest row of patches and the least image."""
DECLINED: dict[str, set[str]] = {"tiny-26b-a4b": {"yoco"}, "tiny-e2b": set()}
"""26B-A4B has no layers that share KV."""


@pytest.mark.parametrize("family", DECLINED)
def test_tokens_equal_transformers(interpreting: Nursery, family: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder, paths = tmp_path_factory.mktemp(family), []
    for number, (colour, size) in enumerate(SIZES):
        paths.append(str(folder / f"{number}.png"))
        images.draw(number, colour).resize(size).save(paths[-1])
    prompts: list[dict[str, Any]] = [{"text": text, "images": [paths[number] for number in own]} for text, own in PROMPTS]
    model = checkpoints.SHIPPED / family
    oracle = decode(model, prompts, NEW_TOKENS, folder)
    assert len(oracle[0].input_ids) > CHUNK, "a prompt over several chunks"
    image = json.loads((model / "config.json").read_text())["image_token_id"]
    sizes = [len(list(run)) for token, run in groupby(oracle[2].input_ids) if token == image]
    assert len(sizes) == len(set(sizes)) == 3, sizes

    texts = [one["text"] if one["images"] else one["text"].removeprefix("<bos>") for one in prompts]  # of a text SGLang adds it
    group = Group(texts, {"max_new_tokens": NEW_TOKENS}, [one["images"] for one in prompts], logprobs=True)
    options: dict[str, Any] = {**MTP, "speculative_draft_model_path": f"{model}-assistant", "chunked_prefill_size": CHUNK}
    overlaps = family == "tiny-26b-a4b"
    options["disable_overlap_schedule"] = not overlaps
    instruments = "fused_layer_counter:install expert_counter:prefill_from_forty_tokens" + " loop_modes:overlapping" * overlaps
    env = {f"SGLANG_GEMMA4_{name}": "1" for name in FASTER} | without() | {"TEST_INSTRUMENTS": instruments}
    answers: list[Output] = interpreting.run(model, [group], env, 600.0, attention_backend="triton", **options)[0]
    for answer, reference in zip(answers, oracle, strict=True):
        assert answer.meta_info["prompt_tokens"] == len(reference.input_ids)
        assert answer.token_ids == reference.token_ids
        assert answer.logprobs == pytest.approx(reference.logprobs, abs=LOGPROB_TOLERANCE)
    assert ("RELAYED" in answers[0].log) == overlaps
    assert set(left(answers[0].log)) == DECLINED[family]
