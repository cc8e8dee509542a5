"""What is served beside quantised weights: a quantised assistant, adapters, a trainer's updates, tables of embeddings."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from crash_repro import dequantised
from sglang_gemma4.tiny import checkpoints, quantise, random_adapters
from sglang_gemma4.tiny.quantisation import FORMATS
from tests.engine.test_accept_length import ENGINE, prompts
from tests.engine.test_quantised import NEW_TOKENS, Written, accept_length, greedy, tokens_of, written
from tests.harness.checkpoints import quantised_sizes
from tests.harness.engine_fork import Group, Nursery

__all__ = ["written"]  # a fixture
COUNTED = {"TEST_INSTRUMENTS": "kernel_counters:dequantised"}
FIRST_OF_ASSISTANT = "QUANTISED 64 x 256."
"""``pre_projection``, whose sizes no layer of a target has."""
FLAG = "--speculative-draft-model-quantization fp8"


@pytest.mark.parametrize(
    ("family", "form", "assistant"),
    [
        ("tiny-e2b", "w4a16-g32", FLAG),
        ("tiny-e2b", "w4a16-g32", "fp8-dynamic"),
        ("tiny-26b-a4b", "w4a16-g32", "w4a16-g32"),
        ("tiny-26b-a4b", "fp8-dynamic", "fp8-static"),
        ("tiny-26b-a4b", "--quantization fp8", FLAG),
        ("tiny-26b-a4b", "--quantization fp8", "w4a16-g32"),
    ],
)
def test_a_quantised_assistant(nursery: Nursery, written: Written, tmp_path: Path, family: str, form: str, assistant: str) -> None:
    """The target's tokens, and drafts that are accepted almost as those of the assistant in bfloat16. E2B's head goes by centroids."""
    online: dict[str, Any] = {"quantization": "fp8"} if form.startswith("--") else {}
    model = checkpoints.SHIPPED / family if online else written(family, form)
    draft: dict[str, Any] = {"speculative_draft_model_quantization": "fp8"}
    if assistant != FLAG:
        source = checkpoints.SHIPPED / f"{family}-assistant"
        scales = _of_every_product(source) if assistant == "fp8-static" else None
        folder = tmp_path / "assistant"
        draft = {"speculative_draft_model_path": quantised_sizes.quantised(source, FORMATS[assistant], folder, lambda _layer: True, scales)}
    plain = greedy(nursery, model, **online)
    usual = greedy(nursery, model, mtp=True, env=COUNTED, **online)
    ours = greedy(nursery, model, mtp=True, env=COUNTED, **online, **draft)
    assert FIRST_OF_ASSISTANT in ours[0].log
    assert FIRST_OF_ASSISTANT not in usual[0].log
    assert tokens_of(ours) == tokens_of(usual) == tokens_of(plain)
    print(f"{family} {form}, assistant {assistant}: accept length {accept_length(ours):.3f}, in bfloat16 {accept_length(usual):.3f}")
    assert accept_length(ours) > 0.85 * accept_length(usual)


def _of_every_product(folder: Path) -> dict[str, float]:
    """Scales of activations up to 32, which hold an assistant's; uncalibrated."""
    names = load_file(folder / "model.safetensors")
    return {name.removesuffix(".weight"): 32 / 448 for name in names}


@pytest.mark.parametrize("family", ["tiny-e2b", "tiny-26b-a4b"])
def test_adapters(nursery: Nursery, written: Written, tmp_path: Path, family: str) -> None:
    """LoRA on 4-bit weights: the tokens of the same adapter on their values in float32; with MTP too, and beside requests without one."""
    model = written(family, "w4a16-g32")
    sizes = random_adapters.sizes_of_checkpoint(checkpoints.SHIPPED / family)
    adapter = random_adapters.write(tmp_path / "adapter", sizes, rank=4, seed=3, spread=0.05)
    asked = prompts()[:4]
    group = Group(asked, {"max_new_tokens": NEW_TOKENS}, client="generate:adapters", extra={"adapters": ["a", None, "a", "a"]})
    lora: dict[str, Any] = {"lora_paths": {"a": str(adapter)}}
    expected = nursery.run(dequantised.write(model, tmp_path / "float32"), [group], **lora)[0]
    mtp: dict[str, Any] = {**ENGINE, "speculative_draft_model_path": f"{model}-assistant"}
    plain, drafted = (nursery.run(model, [group], **lora, **options)[0] for options in ({}, mtp))
    assert tokens_of(plain) == tokens_of(drafted) == tokens_of(expected)
    without = tokens_of(greedy(nursery, model, asked))
    assert [one == other for one, other in zip(tokens_of(plain), without, strict=True)] == [False, True, False, False]


@pytest.mark.parametrize("form", ["w4a16-g32", "--quantization fp8"])
def test_a_trainer_s_weights_are_refused(nursery: Nursery, written: Written, form: str) -> None:
    """Before anything is written: answers stay. The assistant, in bfloat16, takes its own."""
    online: dict[str, Any] = {"quantization": "fp8"} if form.startswith("--") else {}
    model = checkpoints.SHIPPED / "tiny-e2b" if online else written("tiny-e2b", form)
    draft = f"{model}-assistant"

    def group(*steps: Any) -> Group:
        return Group(prompts()[:2], {"max_new_tokens": 12}, client="weight_changes:play", extra={"steps": steps})

    disk, target, every = ({"path": str(model)} | more for more in ({}, {"selector": "target", "begins": True}, {"begins": True}))
    start, refused, taken = nursery.run(
        model,
        [
            group(),
            group(["disk", disk], ["tensor", target], ["tensor", every]),
            group(["tensor", {"path": draft, "selector": "draft"}]),
        ],
        speculative_draft_model_path=draft,
        **ENGINE,
        **online,
    )
    of_disk, tensors, both = refused[0].meta_info["replies"]
    for reply in (of_disk, tensors[0], both[0]):
        assert reply[0] is False
        assert "is quantised, and was rearranged when it was loaded; start a server with the new checkpoint" in reply[1]
    assert "selector 'all' names the target too" in both[0][1]
    assert tensors[1][0] is False
    assert taken[0].meta_info["replies"] == [[[True, "Success"]]]
    assert tokens_of(refused) == tokens_of(taken) == tokens_of(start)


@pytest.mark.parametrize("form", ["fp8-dynamic", "w4a16-g32"])
def test_quantised_tables_of_embeddings(nursery: Nursery, written: Written, tmp_path: Path, form: str) -> None:
    """E2B's per-layer embeddings and its tokens', which SGLang builds for bfloat16: as from a checkpoint with their values."""
    model, by = written("tiny-e2b", form), FORMATS[form]
    tensors = load_file(model / "model.safetensors")
    values = dict(tensors)
    for name in ("embed_tokens", "embed_tokens_per_layer"):
        table = f"model.language_model.{name}"
        parts = quantise.compress(tensors.pop(f"{table}.weight"), by)
        tensors |= {f"{table}.{part}": value.contiguous() for part, value in parts.items()}
        values[f"{table}.weight"] = quantise.decompress(parts, by).bfloat16().contiguous()
    folders = []
    for name, given in (("levels", tensors), ("values", values)):
        folders.append(Path(shutil.copytree(model, tmp_path / name)))
        save_file(given, folders[-1] / "model.safetensors", {"format": "pt"})
    config = json.loads((folders[0] / "config.json").read_text())
    config["quantization_config"]["config_groups"]["group_0"]["targets"].append("Embedding")
    (folders[0] / "config.json").write_text(json.dumps(config))
    levels, expected = (greedy(nursery, folder) for folder in folders)
    assert tokens_of(levels) == tokens_of(expected)
    assert torch.tensor([one.logprobs for one in levels]).equal(torch.tensor([one.logprobs for one in expected]))
