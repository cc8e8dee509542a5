"""Checkpoint variants in engines: transformers' tokens in float32, or one line before weights are loaded."""

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.engine.test_memory_pools import MTP
from tests.harness.checkpoints.checkpoint_variants import VARIANTS, write
from tests.harness.engine_fork import EngineFailed, Group, Nursery
from tests.harness.oracles.transformers_oracle import decode

TOKENS = 16
PROMPTS: list[dict[str, Any]] = [
    {"text": text, "images": []} for text in ("<bos>What is the capital of this land?", "<bos>A story of a red fox, and")
]
LIKE_RELEASED = (
    "text_names_beside_towers",
    "text_names_alone",
    "names_without_a_prefix",
    "older_names",
    "text_only",
    "names_of_the_whole_in_a_text_model",
    "three_files",
    "pickled",
    "head_that_is_the_embedding",
    "untied_by_the_text_config_alone",
    "a_value_head_more",
    "no_towers_and_none_wanted",
)
"""Variants with the tokens of the released checkpoint; transformers itself reads some of these names as no model's."""
LIKE_TRANSFORMERS = (
    "head_of_its_own_by_the_top_level",
    "head_of_its_own_by_the_text_config",
    "head_of_its_own_that_no_config_names",
    "keys_of_shared_layers",
    "no_clip_bounds",
    "no_layer_scalars",
)
"""Variants whose tokens are those of transformers with the same files."""
REFUSED = [name for name, variant in VARIANTS.items() if variant.refused is not None and not variant.family.endswith("-assistant")]
DRAFTS = [name for name, variant in VARIANTS.items() if variant.family.endswith("-assistant")]


@cache
def released(folder: Path, family: str) -> list[tuple[list[int], list[int]]]:
    """Prompt and greedy tokens of the checkpoint that ships."""
    from sglang_gemma4.tiny import checkpoints

    return oracle(checkpoints.SHIPPED / family, folder)


def oracle(model: Path, folder: Path) -> list[tuple[list[int], list[int]]]:
    return [(one.input_ids, one.token_ids) for one in decode(model, PROMPTS, TOKENS, folder)]


def serve(nursery: Nursery, model: Path, prompts: list[list[int]], **engine: Any) -> tuple[list[list[int]], str]:
    (answers,) = nursery.run(model, [Group(prompts, {"max_new_tokens": TOKENS})], max_total_tokens=2048, **engine)
    return [answer.token_ids for answer in answers], answers[0].log


@pytest.fixture(scope="module")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("oracle")


@pytest.mark.parametrize("name", [*LIKE_RELEASED, *LIKE_TRANSFORMERS])
def test_what_loads_has_transformers_tokens(name: str, nursery: Nursery, tmp_path: Path, shared_folder: Path) -> None:
    variant = VARIANTS[name]
    model = write(name, tmp_path / "model")
    pairs = released(shared_folder, variant.family) if name in LIKE_RELEASED else oracle(model, tmp_path)
    flags: dict[str, Any] = {"language_model_only": True} if variant.text_only else {}
    tokens, log = serve(nursery, model, [prompt for prompt, _ in pairs], **flags)
    assert tokens == [answer for _, answer in pairs]
    assert ("1 tensors that the model does not have are left out: v_head.summary.weight" in log) == (name == "a_value_head_more")


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_whole_does_not_start(name: str, nursery: Nursery, tmp_path: Path) -> None:
    model = write(name, tmp_path / "model")
    with pytest.raises(EngineFailed) as error:
        serve(nursery, model, [[2, 300, 301]])
    assert re.search(f"PreflightError: .*{VARIANTS[name].refused}", str(error.value)), str(error.value)[-3000:]
    assert ("Load weight begin" in str(error.value)) == ("a_pickled" in name)


@pytest.mark.parametrize("name", DRAFTS)
def test_a_draft_that_is_not_whole_does_not_start(name: str, nursery: Nursery, tmp_path: Path, shared_folder: Path) -> None:
    from sglang_gemma4.tiny import checkpoints

    draft, refused = write(name, tmp_path / "draft"), VARIANTS[name].refused
    pairs = released(shared_folder, "tiny-e2b")
    options: dict[str, Any] = {**MTP, "speculative_draft_model_path": draft}
    if refused is None:
        assert serve(nursery, checkpoints.SHIPPED / "tiny-e2b", [one for one, _ in pairs], **options)[0] == [one for _, one in pairs]
        return
    with pytest.raises(EngineFailed) as error:
        serve(nursery, checkpoints.SHIPPED / "tiny-e2b", [one for one, _ in pairs], **options)
    assert re.search(f"PreflightError: .*{refused}", str(error.value)), str(error.value)[-3000:]
