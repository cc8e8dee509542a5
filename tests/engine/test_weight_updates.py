"""Weights that change while a server with MTP runs: tokens, accept length and every tensor are those of a server started with them.

One engine of each family goes through every way to change them: from disk, from tensors, from a trainer's process group, after a release
and a resume of memory whose content is lost. Both models' weights come, the assistant's centroids in another order.
"""

import json
import random
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sglang_gemma4.tiny import chat_format, checkpoints, images
from tests.harness.engine_fork import Group, Nursery, Output
from tests.harness.inputs.drafting import MTP
from tests.harness.oracles.reference import text_prompts

FAMILIES = ("tiny-e2b", "tiny-26b-a4b", "tiny-31b")
NOISE = 0.03
ENGINE: dict[str, Any] = {**MTP, "max_total_tokens": 4096}
INSTRUMENTS = {"TEST_INSTRUMENTS": "weight_walk:install weight_walk:discard"}
Steps = Sequence[tuple[str, dict[str, Any]]]


def trained_on(name: str, folder: Path) -> Path:
    """The checkpoint ``name`` with every weight off by a few percent; a centroid head's centroids change places with their tokens."""
    import torch
    from safetensors.torch import load_file, save_file

    path = Path(shutil.copytree(checkpoints.SHIPPED / name, folder / name))
    tensors, generator = load_file(path / "model.safetensors"), torch.Generator().manual_seed(5)
    for key, tensor in tensors.items():
        if tensor.is_floating_point() and "put_m" not in key:  # input_min and its like say where a linear clips
            tensors[key] = (tensor.float() * (1 + NOISE * torch.randn(tensor.shape, generator=generator))).to(tensor.dtype)
    if "masked_embedding.token_ordering" in tensors:
        centroids, ordering = tensors["masked_embedding.centroids.weight"], tensors["masked_embedding.token_ordering"]
        places = torch.randperm(len(centroids), generator=generator)
        tensors["masked_embedding.centroids.weight"] = centroids[places].contiguous()
        tensors["masked_embedding.token_ordering"] = ordering.view(len(centroids), -1)[places].flatten().contiguous()
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    return path


@dataclass
class Served:
    """Answers of one family's engines by the name of a stage; ``fresh`` ones were started with the new weights."""

    fresh: dict[str, list[Output]]
    changed: dict[str, list[Output]]

    def walk(self, stage: str) -> dict[str, Any]:
        """What ``weight_walk`` saw after the steps of a stage."""
        found: dict[str, Any] = (self.fresh if stage == "fresh" else self.changed)[stage][0].meta_info["replies"][-1]
        return found


def stages(old: Path, new: Path, strange: Path) -> dict[str, tuple[Steps, bool]]:
    """Steps and whether images are asked about, in the order of one engine's life."""
    drafts = [path.with_name(f"{path.name}-assistant") for path in (old, new)]
    old_draft = ("tensor", {"path": drafts[0], "selector": "draft", "buckets": 3})
    both = [("tensor", {"path": new, "selector": "target"}), ("tensor", {"path": drafts[1], "selector": "draft", "buckets": 3})]
    return {
        "start": ([], False),
        "start_images": ([], True),
        "disk": ([("disk", {"path": new}), ("disk", {"path": drafts[1]})], False),
        "disk_images": ([], True),
        "back_by_tensor": ([("tensor", {"path": old, "buckets": 2}), old_draft], False),
        "distributed": (
            [
                ("distributed", {"path": new, "selector": "target", "buckets": 3}),
                ("distributed", {"path": drafts[1], "selector": "draft", "buckets": 3}),
            ],
            False,
        ),
        "resumed": ([("release", {}), ("resume", {}), *both], False),
        "refused": ([("disk", {"path": strange}), ("tensor", {"path": drafts[1]}), ("tensor", {"path": strange})], False),
        "after_refusal": (both, False),
    }


@pytest.fixture(scope="module", params=FAMILIES)
def served(request: pytest.FixtureRequest, nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Served:
    name, folder = request.param, tmp_path_factory.mktemp(request.param)
    old, new = checkpoints.SHIPPED / name, trained_on(name, folder)
    trained_on(f"{name}-assistant", folder)
    strange = checkpoints.SHIPPED / next(family for family in FAMILIES if family != name)
    prompts = text_prompts(name, [14, 31, 60, 90])
    dialogue, colours = images.colour_chat(random.Random(3), 1)
    picture = folder / "picture.png"
    images.draw(7000, colours[0]).save(picture)
    question = chat_format.render(dialogue, prompt_only=True)

    def group(steps: Steps, of_image: bool) -> Group:
        taken = [[step, {key: str(value) if isinstance(value, Path) else value for key, value in given.items()}] for step, given in steps]
        options: dict[str, Any] = {"client": "weight_changes:play", "extra": {"steps": [*taken, ["walk", {}]]}}
        if of_image:
            return Group([question], {"max_new_tokens": 16}, [[str(picture)]], logprobs=True, **options)
        return Group(prompts, {"max_new_tokens": 24}, **options)

    plan = stages(old, new, strange)
    lives = {
        new: {"fresh": group([], False), "fresh_images": group([], True)},
        old: {stage: group(*given) for stage, given in plan.items()},
    }
    answers = {}
    for path, life in lives.items():
        draft = path.with_name(f"{path.name}-assistant")
        outputs = nursery.run(path, list(life.values()), INSTRUMENTS, speculative_draft_model_path=draft, **ENGINE)
        answers[path] = dict(zip(life, outputs, strict=True))
    return Served(answers[new], answers[old])


def tokens(outputs: list[Output]) -> list[list[int]]:
    return [output.token_ids for output in outputs]


def accept_length(outputs: list[Output]) -> float:
    steps: int = sum(output.meta_info["spec_verify_ct"] for output in outputs)
    return sum(len(output.token_ids) for output in outputs) / steps


def test_the_new_weights_answer_otherwise(served: Served) -> None:
    """Or nothing below would show anything."""
    assert tokens(served.changed["start"]) != tokens(served.fresh["fresh"])
    assert accept_length(served.fresh["fresh"]) > 1.8
    first, other = (walk["target"]["tensors"] for walk in (served.walk("start"), served.walk("fresh")))
    assert sum(first[path][2] != other[path][2] for path in first) > 80


@pytest.mark.parametrize("stage", ["disk", "distributed", "resumed", "after_refusal"])
def test_answers_are_those_of_a_fresh_server(served: Served, stage: str) -> None:
    assert tokens(served.changed[stage]) == tokens(served.fresh["fresh"])
    assert accept_length(served.changed[stage]) == accept_length(served.fresh["fresh"])


def test_old_weights_bring_old_answers(served: Served) -> None:
    """Sent to "all", SGLang's default, in two parts; the assistant's in three."""
    assert tokens(served.changed["back_by_tensor"]) == tokens(served.changed["start"])
    assert accept_length(served.changed["back_by_tensor"]) == accept_length(served.changed["start"])


@pytest.mark.parametrize(
    ("stage", "reference"), [("disk", "fresh"), ("back_by_tensor", "start"), ("distributed", "fresh"), ("resumed", "fresh")]
)
def test_every_tensor_is_that_of_a_fresh_server(served: Served, stage: str, reference: str) -> None:
    """Bit for bit, wherever it hangs; and in place, for a captured graph has its address."""
    start, expected = served.walk("start"), served.walk(reference)
    for role, found in served.walk(stage).items():
        here, there = found["tensors"], expected[role]["tensors"]
        assert here.keys() == there.keys()
        assert [path for path in here if here[path][1:3] != there[path][1:3]] == []
        moved = [path for path in here if here[path][0] != start[role]["tensors"][path][0]]
        assert set(moved) <= {"_sglang_gemma4_head_order"}, "which no graph reads"


def test_images_are_seen_by_the_new_tower(served: Served) -> None:
    """The same picture before and after: its embedding is not the one that was kept."""
    fresh, changed = served.fresh["fresh_images"][0], served.changed["disk_images"][0]
    assert changed.token_ids == fresh.token_ids
    assert changed.logprobs == pytest.approx(fresh.logprobs, abs=1e-5)
    assert changed.logprobs != pytest.approx(served.changed["start_images"][0].logprobs, abs=1e-3)


def test_what_fits_no_model_is_refused(served: Served) -> None:
    """A model of another size from disk and by tensors, and an assistant's tensors for a target: the server says so and lives."""
    disk, assistant, strange, _ = served.changed["refused"][0].meta_info["replies"]
    assert disk[0] is False
    assert "does not fit this model" in disk[1]
    assert "are back" in disk[1]
    assert json.dumps(assistant).count("selector 'draft'") >= 1
    assert [reply[0] for reply in assistant] == [False]
    assert strange[0][0] is False
    assert "do not fit this model" in strange[0][1]
