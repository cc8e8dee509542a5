"""Pipeline stages, experts over ranks, data-parallel attention and replicas (two ranks over gloo): the tokens of one rank, in float32."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from sglang_gemma4.serving.launch import resolve
from sglang_gemma4.tiny import images
from tests.engine.test_two_ranks import PROMPTS, RANKS
from tests.harness.engine_fork import EngineFailed, Group, Nursery, Output
from tests.harness.inputs.drafting import MTP

STAGES = {"TEST_INSTRUMENTS": f"{RANKS['TEST_INSTRUMENTS']} gloo_ranks:tell_stage_pools"}
EXPERTS = {"tp_size": 2, "ep_size": 2}
ATTENTION = {"tp_size": 2, "attn_dp_size": 2}
FORMS: dict[str, tuple[str, dict[str, Any], dict[str, str]]] = {
    "stages": ("tiny-26b-a4b", {"pp_size": 2}, STAGES),
    "stages-dense": ("tiny-31b", {"pp_size": 2}, STAGES),
    "stages-shared-kv": ("tiny-e2b", {"pp_size": 2}, {**STAGES, "SGLANG_PP_LAYER_PARTITION": "3,7"}),
    "stages-unified-pool": ("tiny-26b-a4b", {"pp_size": 2, "enable_unified_memory": True}, {}),
    "experts": ("tiny-26b-a4b", EXPERTS, {}),
    "experts-mtp": ("tiny-26b-a4b", {**EXPERTS, **MTP}, {}),
    "attention": ("tiny-26b-a4b", ATTENTION, {}),
    "attention-experts": ("tiny-26b-a4b", {**ATTENTION, **EXPERTS}, {}),
    "attention-dense": ("tiny-31b", ATTENTION, {}),
    "attention-layer-embeddings": ("tiny-e2b", ATTENTION, {}),
    "replicas": ("tiny-26b-a4b", {"dp_size": 2}, {}),
    "replicas-mtp": ("tiny-26b-a4b", {"dp_size": 2, **MTP}, {}),
}
HELD = {
    "stages": {"sliding [0, 1, 2] full [5]", "sliding [3, 4] full [5]"},
    "stages-dense": {"sliding [0, 1, 2] full [5]", "sliding [3, 4] full [5]"},
    "stages-shared-kv": {"sliding [0, 1, 2] full [4]", "sliding [3] full [4]"},
}
"""Layers whose KV the stages hold. The first one has no full layer and holds one that nothing reads, so that its pools are alike; the last
five layers of tiny-e2b read the KV of layers 3 and 4."""
_one_rank: dict[str, list[list[Output]]] = {}


def answers(nursery: Nursery, name: str, options: Mapping[str, Any], env: Mapping[str, str]) -> list[list[Output]]:
    """Of four requests at once, and of one, beside which a rank with attention of its own has nothing to do."""
    model = resolve(name)
    draft = {"speculative_draft_model_path": f"{model}-assistant"} if "speculative_algorithm" in options else {}
    groups = [Group(PROMPTS, {"max_new_tokens": 40}, logprobs=True), Group(PROMPTS[:1], {"max_new_tokens": 12}, logprobs=True)]
    return nursery.run(model, groups, env=env, **{**options, **draft})


def one_rank(nursery: Nursery, name: str) -> list[list[Output]]:
    """The model's answers on one rank, without speculation."""
    if name not in _one_rank:
        _one_rank[name] = answers(nursery, name, {}, {})
    return _one_rank[name]


@pytest.mark.parametrize("form", FORMS)
def test_tokens_are_those_of_one_rank(form: str, nursery: Nursery) -> None:
    name, options, env = FORMS[form]
    split = answers(nursery, name, options, {**RANKS, **env})
    for group, references in zip(split, one_rank(nursery, name), strict=True):
        for answer, reference in zip(group, references, strict=True):
            assert answer.token_ids == reference.token_ids
            assert answer.logprobs == pytest.approx(reference.logprobs, abs=1e-4)
    first = split[0][0]
    if "speculative_algorithm" in options:
        assert first.meta_info["spec_verify_ct"] < len(first.token_ids), "drafts were accepted"
    if form in HELD:
        assert set(re.findall(r"STAGE \d: (.*)", first.log)) == HELD[form]


@pytest.mark.parametrize("form", ["stages", "attention"])
def test_images_are_seen_as_on_one_rank(form: str, nursery: Nursery, tmp_path: Path) -> None:
    """tiny-26b-a4b, whose image tokens attend both ways."""
    picture = tmp_path / "picture.png"
    images.draw(1, "blue").resize((200, 60)).save(picture)
    group = Group(["<bos>What is this <|image|> called?"] * 3, {"max_new_tokens": 12}, images=[str(picture)] * 3, logprobs=True)
    name, options, _ = FORMS[form]
    one = nursery.run(resolve(name), [group])[0]
    split = nursery.run(resolve(name), [group], env=RANKS, **options)[0]
    for answer, reference in zip(split, one, strict=True):
        assert answer.token_ids == reference.token_ids
        assert answer.logprobs == pytest.approx(reference.logprobs, abs=1e-4)


def test_layers_that_read_another_stage_s_kv_are_refused(nursery: Nursery) -> None:
    """By SGLang's own split of tiny-e2b."""
    with pytest.raises(
        EngineFailed, match=r"--pp-size 2: layers 5 to 9 read the KV of layers 3 and 4, .*set SGLANG_PP_LAYER_PARTITION=3,7"
    ):
        answers(nursery, "tiny-e2b", {"pp_size": 2}, RANKS)
