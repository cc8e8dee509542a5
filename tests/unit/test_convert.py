"""``sglang-gemma4 quantize``: numbers on Q4_0's grid stay, files and index agree, what cannot be is refused before a file is written."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from sglang_gemma4 import cli
from sglang_gemma4.tiny import checkpoints, convert, quantise
from sglang_gemma4.tiny.quantisation import FORMATS
from tests.harness.checkpoints import q4_0_checkpoint

FOUR = FORMATS["w4a16-g32"]


def error(weight: torch.Tensor, on_grid: bool) -> float:
    parts = quantise.compress(weight, FOUR, on_grid)
    return float((quantise.decompress(parts, FOUR).float() - weight.float()).norm() / weight.float().norm())


def test_numbers_on_the_grid_stay_and_others_get_no_worse() -> None:
    weight = torch.randn(64, 256, generator=torch.Generator().manual_seed(5), dtype=torch.bfloat16)
    qat = q4_0_checkpoint.on_grid(weight)
    assert error(qat, True) < 0.003, "bfloat16 has 8 bits"
    assert error(qat, False) > 0.03
    assert error(weight, True) < error(weight, False)
    weight[3] = 0
    assert torch.equal(quantise.decompress(quantise.compress(weight, FOUR, True), FOUR)[3], weight[3])


def test_files_index_and_config(tmp_path: Path) -> None:
    source, found = q4_0_checkpoint.write("tiny-26b-a4b", tmp_path / "qat", parts=2), tmp_path / "found"
    lines: list[str] = []
    relative = convert.convert(source, found, FOUR, part_bytes=400_000, say=lines.append)
    assert 0 < relative < 0.003
    index = json.loads((found / convert.INDEX).read_text())
    tensors: dict[str, torch.Tensor] = {}
    for file in sorted(found.glob("*.safetensors")):
        held = safetensors.torch.load_file(file)
        assert {name for name, where in index["weight_map"].items() if where == file.name} == set(held)
        tensors |= held
    assert len(list(found.glob("*.safetensors"))) == len(lines) > 2
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in tensors.values())
    whole = tmp_path / "whole"
    checkpoints.write("tiny-26b-a4b", str(whole), quantised="w4a16-g32")
    expected = safetensors.torch.load_file(whole / "model.safetensors")
    assert {name: tensor.shape for name, tensor in tensors.items()} == {name: tensor.shape for name, tensor in expected.items()}
    given, wanted = (json.loads((folder / "config.json").read_text())["quantization_config"] for folder in (found, whole))
    assert sorted(given["ignore"]) == sorted(wanted["ignore"])
    assert given["config_groups"] == wanted["config_groups"]
    for name in ("tokenizer.json", "generation_config.json"):
        assert (found / name).exists() == (source / name).exists()


def changed(folder: Path, **settings: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **settings}))


def save_without(folder: Path, lost: str) -> None:
    file = folder / "model.safetensors"
    tensors = {name: tensor for name, tensor in safetensors.torch.load_file(file).items() if lost not in name}
    safetensors.torch.save_file(tensors, file, metadata={"format": "pt"})


def fills(folder: Path) -> None:
    (folder.parent / "found").mkdir()
    (folder.parent / "found" / "mine.txt").write_text("")


@pytest.mark.parametrize(("spoil", "words", "said"), [
    (lambda folder: changed(folder, architectures=["LlamaForCausalLM"]), [], "is ['LlamaForCausalLM'], no Gemma 4 model"),
    (lambda folder: changed(folder, quantization_config={"quant_method": "awq"}), [], "is quantised already (awq)"),
    (lambda folder: (folder / "config.json").unlink(), [], "has no config.json; name a checkpoint's directory"),
    (lambda folder: (folder / "model.safetensors").unlink(), [], "lacks safetensors files; download the whole checkpoint"),
    (lambda folder: (folder / convert.INDEX).write_text('{"weight_map": {"a": "b.safetensors"}}'), [], "lacks b.safetensors"),
    (lambda folder: (folder / convert.INDEX).write_text('{"weight'), [], "is not valid JSON"),
    (lambda folder: os.truncate(folder / "model.safetensors", 9000), [], "is cut short"),
    (lambda folder: os.truncate(folder / "model.safetensors", 4_000_000), [], "is cut short"),
    (lambda folder: os.truncate(folder / "model.safetensors", 0), [], "is cut short"),
    (lambda folder: save_without(folder, "language_model.layers.0.mlp.gate"), [], "lacks 1 of the model's 158 tensors"),
    (lambda _: None, ["--format", "fp8-static"], "--format fp8-static needs a calibration of the activations"),
    (lambda _: None, ["--format", "w4a16-g128"], "--format w4a16-g128: groups of 128 do not divide intermediate_size 96"),
    (lambda _: None, ["--format", "q4_0"], "--format q4_0: unknown; there are fp8-dynamic"),
    (fills, [], "is not empty; name a new or empty directory"),
])  # fmt: skip
def test_what_cannot_be_is_refused_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], spoil: Callable[[Path], Any], words: list[str], said: str
) -> None:
    source, found = tmp_path / "source", tmp_path / "found"
    shutil.copytree(checkpoints.SHIPPED / "tiny-26b-a4b", source)
    spoil(source)
    assert cli.main(["quantize", str(source), str(found), *words]) == 2
    assert said in capsys.readouterr().err
    assert not (found / "config.json").exists()


def test_a_directory_without_room_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convert, "_bytes_of", lambda _files, _form: 1 << 60)
    with pytest.raises(ValueError, match=r"would take 1073741824\.0 GiB and has .* GiB free; name a directory with more room"):
        convert.convert(checkpoints.SHIPPED / "tiny-e2b", tmp_path / "found", FOUR)


@pytest.mark.parametrize(("family", "form", "least", "most"), [
    ("tiny-e2b", "fp8-dynamic", 0.01, 0.04), ("tiny-26b-a4b", "w4a16-g32", 0.05, 0.09),
])  # fmt: skip
def test_the_room_asked_for_is_what_it_takes(tmp_path: Path, family: str, form: str, least: float, most: float) -> None:
    source, found = checkpoints.SHIPPED / family, tmp_path / "found"
    assert least < convert.convert(source, found, FORMATS[form], say=lambda _: None) < most
    expected = convert._bytes_of([source / "model.safetensors"], FORMATS[form])
    taken = json.loads((found / convert.INDEX).read_text())["metadata"]["total_size"]
    assert expected == pytest.approx(taken, rel=0.05), "headers, and scales of narrow products"
