"""``--language-model-only``: the same tokens without the towers, their memory in the pools, and images refused by name."""

import base64
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from sglang_gemma4.tiny import checkpoints, images
from tests.engine.test_memory_pools import FROM_MEMORY, MTP, Pools
from tests.harness.engine_fork import Group, Nursery, without
from tests.harness.oracles.reference import text_prompts

TARGETS = ("tiny-26b-a4b", "tiny-e2b")
TOWER = {
    "num_hidden_layers": 8,
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_attention_heads": 12,
    "num_key_value_heads": 12,
    "head_dim": 64,
}
"""A vision tower of 76 million parameters, 288 MiB in float32."""
TOWER_GIB = 8 * (4 * 768 * 768 + 3 * 768 * 3072) * 4 / 2**30


@pytest.mark.parametrize("name", TARGETS)
def test_tokens_are_those_with_towers(name: str, nursery: Nursery) -> None:
    model = checkpoints.SHIPPED / name
    groups = [Group(text_prompts(name, [9, 40, 150]), {"max_new_tokens": 16})]
    expected = nursery.run(model, groups, chunked_prefill_size=64)[0]
    without = nursery.run(model, groups, chunked_prefill_size=64, language_model_only=True)[0]
    assert [output.token_ids for output in without] == [output.token_ids for output in expected]
    left, size = re.findall(r"--language-model-only: (\d+) tensors of the towers left out, ([\d.]+) MiB", without[0].log)[0]
    assert int(left) > 20
    assert float(size) > 0
    assert "left out" not in expected[0].log
    drafted = nursery.run(model, groups, language_model_only=True, **MTP, speculative_draft_model_path=f"{model}-assistant")[0]
    assert [output.token_ids for output in drafted] == [output.token_ids for output in expected]
    assert all(output.meta_info["spec_verify_ct"] < 16 for output in drafted)


def test_the_pools_get_the_towers_memory(nursery: Nursery, tmp_path: Path) -> None:
    model = tmp_path / "tiny-26b-a4b"
    shutil.copytree(checkpoints.SHIPPED / "tiny-26b-a4b", model)
    config = json.loads((model / "config.json").read_text())
    config["vision_config"] |= TOWER
    (model / "config.json").write_text(json.dumps(config))
    group = Group([[2, *range(300, 340)]], {"max_new_tokens": 4})
    env = {"TEST_INSTRUMENTS": "device_memory:steady_for_each", **without("swa_sizing")}

    def pools(**options: Any) -> Pools:
        return Pools(nursery.run(model, [group], env, load_format="dummy", **FROM_MEMORY, **options)[0])

    whole, text = pools(), pools(language_model_only=True)
    print(
        f"{whole.full} + {whole.sliding} tokens with the tower, {text.full} + {text.sliding} without; {text.gib - whole.gib:.2f} GiB more"
    )
    weights = [float(re.findall(r"Load weight end.* mem usage=([\d.]+) GB", found.log)[0]) for found in (whole, text)]
    assert weights[0] - weights[1] == pytest.approx(TOWER_GIB, abs=0.02)
    assert text.gib - whole.gib >= TOWER_GIB - 0.02, "and what the image processor takes"


def test_an_image_is_refused_by_name_and_text_goes_on(nursery: Nursery, tmp_path: Path) -> None:
    images.draw(1, "red").save(tmp_path / "red.png")
    url = "data:image/png;base64," + base64.b64encode((tmp_path / "red.png").read_bytes()).decode()
    picture = [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": url}}]
    messages = [[{"role": "user", "content": content}] for content in (picture, "Who is the ruler?")]
    group = Group(["", ""], client="language_model_only_client:chat", extra={"messages": messages})
    refused, answered = (json.loads(o.text) for o in nursery.run(checkpoints.SHIPPED / TARGETS[0], [group], language_model_only=True)[0])
    assert refused[0] == 400
    assert "--language-model-only" in refused[1]
    assert answered[0] == 200
    assert json.loads(answered[1])["usage"]["completion_tokens"] > 0
