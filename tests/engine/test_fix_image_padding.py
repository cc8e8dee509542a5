"""Padding patches: with the patch an image's log-probabilities equal transformers', without it they do not."""

from pathlib import Path

import pytest

from sglang_gemma4.tiny import checkpoints, images
from tests.engine.engine_fork import Group, Nursery
from tests.engine.test_oracle import LOGPROB_TOLERANCE
from tests.engine.transformers_oracle import decode

TEXT = "<bos>What is this <|image|> called?"


@pytest.mark.parametrize("family", ["tiny-e2b", "tiny-26b-a4b"])
def test_both_ways(family: str, nursery: Nursery, tmp_path: Path) -> None:
    picture = tmp_path / "picture.png"
    images.draw(1, "blue").resize((200, 60)).save(picture)
    model = checkpoints.SHIPPED / family
    (oracle,) = decode(model, [{"text": TEXT, "images": [str(picture)]}], 8, tmp_path)
    group = Group([TEXT], {"max_new_tokens": 8}, images=[str(picture)], logprobs=True)
    errors = {}
    for switch in ("1", "0"):
        ((output,),) = nursery.run(model, [group], env={"SGLANG_GEMMA4_BATCHED_VISION": "0", "SGLANG_GEMMA4_IMAGE_PADDING": switch})
        errors[switch] = abs(output.logprobs[0] - oracle.logprobs[0])
        if switch == "1":
            assert output.token_ids == oracle.token_ids
    print(family, errors)
    assert errors["1"] <= LOGPROB_TOLERANCE < errors["0"]
