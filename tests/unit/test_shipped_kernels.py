"""The package's lists of kernels: that they fit the sources, which model takes which, and that a first start compiles them."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from sglang.srt.utils.hf_transformers.config import get_config
from transformers import AutoConfig

from sglang_gemma4.cli import main as cli
from sglang_gemma4.patching.switches import CACHE_DIR
from sglang_gemma4.start import ahead, manifest, shipped
from tests.harness import hopper_operands
from tests.unit.test_compile_ahead import CARD, HOPPER, KEY, caches, hits, record  # noqa: F401 - caches is a fixture

FLAGS = {**shipped.ORDINARY, "speculative_algorithm": "FROZEN_KV_MTP"}
LISTS = sorted(shipped.FOLDER.glob("*.json.gz"))


@pytest.mark.parametrize("path", LISTS, ids=lambda path: str(path.name))
def test_a_list_fits_the_sources(path: Path) -> None:
    found = shipped.read(path)
    strangers = []
    for entry in found["entries"]:
        kernel = manifest.kernel(entry["kernel"])
        if list(entry["signature"]) != kernel.arg_names:
            strangers.append(entry["kernel"])
        # Triton keeps attributes of each argument that is a constant. An entry whose signature was given new arguments by hand has none of
        # theirs, and another key than its launch: on an H100 24 kernels were compiled in vain, then again one by one.
        constant = {number for number, kind in enumerate(entry["signature"].values()) if kind == "constexpr"}
        if not constant <= {path[0] for path, _ in entry["attributes"]}:
            strangers.append(entry["kernel"])
    assert not strangers, "kernels changed: record the list anew (docs/measuring.md)"
    assert {entry["target"][1] for entry in found["entries"]} == {found["capability"]}


def test_some_of_a_list_is_compiled_without_a_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    entries = [entry for entry in shipped.read(LISTS[0])["entries"] if "head_argmax" in entry["kernel"]]
    assert entries
    assert manifest.compile_entry(entries[0])
    assert not manifest.compile_entry(entries[0]), "now it is on disk"


@pytest.mark.parametrize("path", LISTS, ids=lambda path: str(path.name))
def test_no_kernel_writes_to_an_operand_that_wgmma_still_reads(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Triton's own assembler makes them, which may (``sglang_gemma4/kernels/assembler.py``)."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    for entry in shipped.read(path)["entries"]:
        manifest.compile_entry(entry)
    codes = {file: hopper_operands.sass(file.read_bytes()) for file in tmp_path.glob("*/*.cubin")}
    assert any(each.first_operand() for code in codes.values() for each in code if each.operation.startswith("HGMMA")), (
        "else this shows nothing"
    )
    assert {file.stem: found for file, code in codes.items() if (found := hopper_operands.overwritten(code))} == {}


@pytest.fixture(scope="module")
def configs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, object]]:
    made = {}
    for size in (
        "26b-a4b",
        "26b-a4b fp8-dynamic",
        "26b-a4b fp8-static",
        "26b-a4b w4a16-g32",
        "26b-a4b w4a16-asym-g32",
        "31b",
        "12b",
        "e2b",
    ):
        place = tmp_path_factory.mktemp("checkpoint") / "model"
        name, *form = size.split()
        assert cli(["checkpoint", name, str(place), "--random", *(["--quantization", *form] if form else [])]) == 0
        made[size] = AutoConfig.from_pretrained(place).to_dict()
        made[f"{size} in a server"] = get_config(str(place), trust_remote_code=False).to_dict()
    return made


def test_the_model_the_flags_and_the_card_decide(configs: dict[str, dict[str, object]]) -> None:
    assert configs["26b-a4b in a server"] != configs["26b-a4b"]
    for where in ("", " in a server"):
        found = {form: shipped.find(configs[f"26b-a4b{form}{where}"], FLAGS, HOPPER) for form in ("", " fp8-dynamic", " w4a16-g32")}
        assert {form: path and path.name for form, path in found.items()} == {
            form: f"gemma-4-26b-a4b{form.replace(' ', '-')}-mtp-sm90.json.gz" for form in found
        }
        for form in ("fp8-static", "w4a16-asym-g32"):
            assert shipped.find(configs[f"26b-a4b {form}{where}"], FLAGS, HOPPER) is None
        assert shipped.find(configs[f"31b{where}"], FLAGS, HOPPER) is None
        assert shipped.find(configs[f"e2b{where}"], FLAGS, HOPPER) is None
    assert shipped.find(configs["26b-a4b"], FLAGS, 100) is None
    preset = {"quant_method": "compressed-tensors", "config_groups": {"W4A16": ["Linear"]}}
    for config in ({"quant_method": "compressed-tensors"}, preset, {"quant_method": "gptq", "bits": 4, "group_size": 32}, object()):
        assert shipped.find({**configs["26b-a4b in a server"], "quantization_config": config}, FLAGS, HOPPER) is None
    for name, value in (("tp_size", "2"), ("quantization", "fp8"), ("kv_cache_dtype", "fp8_e4m3"), ("disaggregation_mode", "decode")):
        assert shipped.find(configs["26b-a4b"], FLAGS | {name: value}, HOPPER) is None


def test_a_first_start_takes_it_and_the_next_its_own(caches: Callable[[], None], tmp_path: Path) -> None:  # noqa: F811
    entries = record()
    kept, model, made = tmp_path / "kept.json", tmp_path / "model", tmp_path / "list.json.gz"
    kept.write_text(json.dumps({"value": {"entries": entries}}))
    model.mkdir()
    (model / "config.json").write_text('{"text_config": {"hidden_size": 8}}')
    assert shipped.main([str(kept), str(model), str(made)]) == 0
    assert shipped.read(made)["fits"]["hidden_size"] == 8
    caches()
    first = ahead.Ahead(CARD, KEY, made)
    assert first.begin() == 2
    assert str(first.wait(300)).startswith("2 kernels were compiled ahead")
    assert hits() == [True, True]
    first.keep()
    assert ahead.Ahead(CARD, KEY, made).begin() == 0


def test_where_nothing_is_kept_no_list_is_compiled(caches: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.setenv(CACHE_DIR, "")
    assert ahead.Ahead(CARD, KEY, LISTS[0]).begin() == 0


def test_kernels_of_two_cards_make_no_list(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = tmp_path / "kept.json"
    kept.write_text('{"value": {"entries": [{"target": ["cuda", 90, 32]}, {"target": ["cuda", 80, 32]}]}}')
    with pytest.raises(SystemExit):
        shipped.main([str(kept), str(tmp_path), str(tmp_path / "list.json.gz")])
    assert "compute capabilities [80, 90]" in capsys.readouterr().err
