"""The program that measures EAGLE-3's, DFlash's and DSpark's drafts: its drafts fit their targets, and how its answers are compared."""

import json
import sys
from pathlib import Path

import pytest

from sglang_gemma4.diagnostics import own_draft_limits
from sglang_gemma4.tiny import real_sizes
from tests.gpu import drafter_engines
from tests.harness.checkpoints import other_drafts


@pytest.mark.parametrize("algorithm", ["EAGLE3", "DFLASH", "DSPARK"])
@pytest.mark.parametrize("size", sorted(real_sizes.SIZES))
def test_large_drafts_fit_their_targets(size: str, algorithm: str, tmp_path: Path) -> None:
    target = real_sizes.target(size)
    draft = json.loads((other_drafts.large(tmp_path, algorithm, target) / "config.json").read_text())
    assert list(own_draft_limits.problems("DRAFT", draft, algorithm, target)) == []
    assert draft["num_hidden_layers"] == len(draft.get("layer_types", ["one"]))


def test_the_share_ends_at_an_answer_s_first_difference(tmp_path: Path) -> None:
    plain, other = [[1, 2, 3, 4], [5, 6, 7, 8]], [[1, 2, 3, 4], [5, 0, 7, 8]]
    assert drafter_engines.equal(plain, other) == 0.625
    assert drafter_engines.compare(tmp_path, "dflash") is None
    for arm, tokens in (("plain", plain), ("dflash", other)):
        (tmp_path / f"{arm}.json").write_text(json.dumps({"tokens": tokens}))
    assert drafter_engines.compare(tmp_path, "plain") is None
    assert drafter_engines.compare(tmp_path, "dflash") == 0.625
    assert json.loads((tmp_path / "dflash.json").read_text())["equal"] == 0.625


def test_an_engine_that_hangs_is_ended(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    assert drafter_engines.ended(command, tmp_path / "log", 0.5, {}) == 124
    assert drafter_engines.ended([sys.executable, "-c", "raise SystemExit(3)"], tmp_path / "log", 60, {}) == 3


def test_a_failed_engine_leaves_the_end_of_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(command: list[str], log: Path, limit: float, environment: dict[str, str]) -> int:
        log.write_text("".join(f"line {number}\n" for number in range(100)))
        return 7

    monkeypatch.setattr(drafter_engines, "ended", fails)
    asked = drafter_engines.parser().parse_args([str(tmp_path), "26b-a4b"])
    found = drafter_engines.run("eagle3", asked)
    assert found == json.loads((tmp_path / "eagle3.json").read_text())
    assert found["last"] == [f"line {number}" for number in range(70, 100)]
    assert drafter_engines.summary(found, None).startswith("eagle3: status 7 after")


def test_arguments_of_the_arms(tmp_path: Path) -> None:
    plain, *drafting = (drafter_engines.engine_arguments(arm, "26b-a4b", tmp_path, {}, on_gpu=True) for arm in drafter_engines.ARMS)
    assert len(drafting) == 3
    assert all(plain.items() < given.items() for given in drafting)
    assert (tmp_path / "26b-a4b-eagle3" / "config.json").exists()
    tiny = drafter_engines.engine_arguments("dflash", "tiny-26b-a4b", tmp_path, {"page_size": 16}, on_gpu=False)
    assert (tiny["device"], tiny["dtype"], tiny["page_size"]) == ("cpu", "float32", 16)
    assert Path(tiny["speculative_draft_model_path"], "model.safetensors").exists()


@pytest.mark.parametrize(
    ("words", "message"), [(["26b-a4b"], "need a GPU"), (["tiny-26b-a4b", "medusa"], "no arm is called medusa"), (["x"], "invalid choice")]
)
def test_wrong_words(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drafter_engines, "has_accelerator", lambda: False)
    with pytest.raises(SystemExit):
        drafter_engines.main([str(tmp_path), *words])
    assert message in capsys.readouterr().err
