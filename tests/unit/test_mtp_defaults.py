"""What is filled in when an operator asks for MTP and leaves things out."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_gemma4.diagnostics import start_checks
from sglang_gemma4.models.config_files import PreflightError
from sglang_gemma4.serving import starting
from sglang_gemma4.speculative import mtp_defaults

ALL = {"speculative_algorithm": "NEXTN", "speculative_num_steps": 3, "speculative_eagle_topk": 1, "speculative_num_draft_tokens": 4}


@pytest.fixture
def model(tmp_path: Path) -> str:
    """A target's directory with its assistant's beside it, configs only."""
    for name, architecture in (("target", "Gemma4ForConditionalGeneration"), ("target-assistant", "Gemma4AssistantForCausalLM")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps({"architectures": [architecture]}))
    return str(tmp_path / "target")


def missing(model: str, **given: Any) -> dict[str, Any]:
    return mtp_defaults.missing({"model_path": model, **given})


def test_the_draft_alone_is_enough(model: str) -> None:
    assert missing(model, speculative_draft_model_path=f"{model}-assistant") == ALL


def test_auto_finds_the_assistant_beside_the_model(model: str) -> None:
    expected = {**ALL, "speculative_draft_model_path": f"{model}-assistant"}
    assert missing(model, speculative_draft_model_path="auto") == expected
    assert missing(f"{model}/", speculative_draft_model_path="auto") == expected
    assert mtp_defaults.sibling("google/gemma-4-26B-A4B-it") == "google/gemma-4-26B-A4B-it-assistant"


def test_what_was_typed_stands(model: str) -> None:
    draft = f"{model}-assistant"
    assert missing(model, speculative_draft_model_path=draft, **ALL) == {}
    found = missing(model, speculative_draft_model_path=draft, speculative_num_steps=5)
    assert (found["speculative_num_draft_tokens"], found["speculative_eagle_topk"]) == (6, 1)
    found = missing(model, speculative_draft_model_path=draft, speculative_num_draft_tokens=3)
    assert found["speculative_num_steps"] == 2
    assert "speculative_algorithm" not in missing(model, speculative_draft_model_path=draft, speculative_algorithm="EAGLE")


def test_a_bfloat16_assistant_is_not_quantised_with_its_target(model: str) -> None:
    """SGLang takes the target's --quantization for the draft; a format of the assistant's own, or one that was asked for, stays."""
    draft, unquantised = f"{model}-assistant", {"speculative_draft_model_quantization": "unquant"}
    assert missing(model, speculative_draft_model_path=draft, quantization="fp8") == {**ALL, **unquantised}
    asked = {"quantization": "fp8", "speculative_draft_model_quantization": "fp8"}
    assert missing(model, speculative_draft_model_path=draft, **asked) == ALL
    config = {"architectures": ["Gemma4AssistantForCausalLM"], "quantization_config": {"quant_method": "compressed-tensors"}}
    Path(draft, "config.json").write_text(json.dumps(config))
    assert missing(model, speculative_draft_model_path=draft, quantization="compressed-tensors") == ALL


def test_other_drafts_and_no_draft_are_left_alone(model: str) -> None:
    assert missing(model) == {}
    assert missing(model, speculative_draft_model_path=model) == {}


def test_a_command_line_ends_with_one_line(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_checks, "is_command_line", lambda: True)
    with pytest.raises(SystemExit, match=r"sglang-gemma4: .*nowhere"):
        starting.fill_in(SimpleNamespace(model_path=model, speculative_draft_model_path="/nowhere"))


def test_auto_without_an_assistant_is_refused(tmp_path: Path) -> None:
    (tmp_path / "alone").mkdir()
    with pytest.raises(PreflightError, match=r"auto: there is no .*alone-assistant beside the model; put the assistant there, or name"):
        missing(str(tmp_path / "alone"), speculative_draft_model_path="auto")


@pytest.mark.parametrize(
    ("asked", "stock", "expected"),
    [("EAGLE", "EAGLE", "EAGLE"), ("FROZEN_KV_MTP", "FROZEN_KV_MTP", "FROZEN_KV_MTP"), (None, None, None)],
)
def test_only_a_promotion_is_undone(asked: str | None, stock: str | None, expected: str | None) -> None:
    """No draft is looked at; ``tests/engine/test_force_eagle.py`` has those that are."""
    assert starting.keep_eagle(lambda *_: stock, asked, "nowhere") == expected
