"""A DSpark draft of DeepSpec's layout proposes what its reference does. Its answers: ``test_other_drafters.py``."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.harness.checkpoints import other_drafts
from tests.harness.engine_fork import EngineFailed, Group, Nursery
from tests.harness.instruments.draft_recorder import DRAFTED
from tests.harness.oracles import dspark_reference, reference

RECORDED = {"TEST_INSTRUMENTS": "draft_recorder:install"}
LENGTHS = [20, 90]
"""Of prompts: shorter and longer than the tiny models' window of 64."""


@pytest.mark.parametrize(("name", "block"), [("tiny-26b-a4b", 7), ("tiny-e2b", 7), ("tiny-12b", 5)])
def test_drafts_are_those_of_the_reference(name: str, block: int, nursery: Nursery, tmp_path: Path) -> None:
    """E2B's full layers project values, 26B's and 12B's take those of their keys; a block may be shorter than the draft's own."""
    folder = other_drafts.dspark(tmp_path, name)
    prompts = reference.text_prompts(name, LENGTHS)
    group = Group(prompts, {"max_new_tokens": 24, "ignore_eos": True})
    given: dict[str, Any] = {"speculative_draft_model_path": folder, "speculative_dspark_block_size": block}
    (answers,) = nursery.run(reference.CHECKPOINTS / name, [group], RECORDED, speculative_algorithm="DSPARK", **given)
    texts = {len(prompt): prompt + answer.token_ids for prompt, answer in zip(prompts, answers, strict=True)}
    found = dspark_reference.Reference(folder, reference.load(name))
    contexts = {length: found.context(text) for length, text in texts.items()}
    lines = [json.loads(line.split(DRAFTED)[1]) for line in answers[0].log.splitlines() if DRAFTED in line]
    asked = [(length, before, drafts) for length, before, drafts in lines if length in texts and before < len(texts[length])]
    assert len(asked) >= 2 * len(prompts)
    for length, before, drafts in asked:
        assert drafts == found.drafts(contexts[length][:before], texts[length][before], block), (length, before)
    assert len({tuple(drafts) for _, _, drafts in asked}) > len(asked) // 2, "the drafts hardly depend on what they read"


def test_a_draft_without_a_tensor_is_refused(nursery: Nursery, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = other_drafts.dspark(tmp_path, "tiny-26b-a4b")
    weights: dict[str, torch.Tensor] = load_file(folder / "model.safetensors")
    del weights["layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors")
    given: dict[str, Any] = {"speculative_algorithm": "DSPARK", "speculative_draft_model_path": folder}
    with pytest.raises(EngineFailed, match=r"the DSpark draft has no layers\.1\.mlp\.up_proj\.weight \(1 tensors are missing\)"):
        nursery.run(reference.CHECKPOINTS / "tiny-26b-a4b", [Group([[2, 300]])], **given)
