"""Configs of text-only checkpoints through SGLang's own ``get_config``."""

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from sglang_gemma4.patches import load
from tests.harness import applied
from tests.harness.child import InChild

PATCH = load("text_only_config")
SHAPES = ("head_dim", "v_head_dim", "num_key_value_heads", "swa_head_dim", "swa_v_head_dim", "swa_num_key_value_heads")
FAMILIES = {
    "tiny-31b": [64, 64, 1, 32, 32, 4],
    "tiny-26b-a4b": [64, 64, 1, 32, 32, 2],
    "tiny-e2b": [64, 64, 1, 32, 32, 1],
}


@pytest.fixture(scope="module", autouse=True)
def sglang_imported() -> None:
    importlib.import_module("sglang.srt.utils.hf_transformers.config")


def save(folder: Path, family: str = "tiny-31b", **change: Any) -> Path:
    from transformers import Gemma4TextConfig

    from sglang_gemma4.tiny import families

    config = Gemma4TextConfig(**{**families.TEXT[family], **change}, architectures=["Gemma4ForCausalLM"])
    config.save_pretrained(folder)
    return folder


def shapes(folder: Path, switch: str = "1") -> list[Any]:
    """What SGLang reads from the checkpoint, in a process with the patch on or off."""
    applied.apply([PATCH], switch)
    from sglang.srt.utils.hf_transformers.config import get_config

    config = get_config(str(folder), trust_remote_code=False)
    return [getattr(config, name, None) for name in SHAPES]


@pytest.mark.parametrize("family", FAMILIES)
def test_shapes_as_transformers_saves_them(family: str, tmp_path: Path, in_child: InChild) -> None:
    assert in_child(lambda: shapes(save(tmp_path, family))) == FAMILIES[family]


def test_stock_cannot_read_them(tmp_path: Path, in_child: InChild) -> None:
    def child() -> str:
        try:
            shapes(save(tmp_path), switch="0")
        except Exception as error:
            return type(error).__name__
        return "read"

    assert in_child(child) == "AmbiguousGlobalPerLayerAttributeError", "SGLang reads them itself now: remove the patch"


def test_sglangs_own_names_stay_as_written(tmp_path: Path, in_child: InChild) -> None:
    """The way round that stock needs; transformers calls a config with ``per_layer_config: {}`` heterogeneous as well."""
    file = save(tmp_path) / "config.json"
    written = dict(zip(SHAPES, FAMILIES["tiny-31b"], strict=True))
    file.write_text(json.dumps({**json.loads(file.read_text()), **written, "per_layer_config": {}}))
    assert in_child(lambda: shapes(tmp_path)) == list(written.values())
    assert in_child(lambda: shapes(tmp_path, "0")) == list(written.values())


def test_layers_all_alike_stay_as_written(tmp_path: Path, in_child: InChild) -> None:
    save(tmp_path, global_head_dim=32, num_global_key_value_heads=None)
    assert in_child(lambda: shapes(tmp_path)) == in_child(lambda: shapes(tmp_path, "0"))


def test_what_sglang_cannot_express_is_refused_by_name(tmp_path: Path, in_child: InChild) -> None:
    file = save(tmp_path) / "config.json"
    config = json.loads(file.read_text())
    config["per_layer_config"]["0"] = {"intermediate_size": 64}
    file.write_text(json.dumps(config))

    def child() -> str:
        try:
            shapes(tmp_path)
        except ValueError as error:
            return str(error)
        return "read"

    assert "intermediate_size" in in_child(child)


def test_other_configs_are_not_touched() -> None:
    from sglang_gemma4.models.text_config import flatten_root_config

    class Config:
        model_type = "gemma4"

    flatten_root_config(None, Config())
    flatten_root_config(None, object())
