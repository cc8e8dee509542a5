"""``sglang-gemma4 quantize``: a checkpoint on Q4_0's grid answers as before it was quantised."""

import shutil
from pathlib import Path

import pytest

from sglang_gemma4 import cli
from tests.engine.test_quantised import accept_length, greedy, tokens_of
from tests.harness.checkpoints import q4_0_checkpoint
from tests.harness.engine_fork import Nursery

MODEL = "tiny-26b-a4b"


def test_a_qat_checkpoint_keeps_its_answers(nursery: Nursery, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, found = q4_0_checkpoint.write(MODEL, tmp_path / "qat", parts=3), tmp_path / "quantised"
    assert cli.main(["quantize", str(source), str(found)]) == 0
    assert "w4a16-g32; the weights differ from" in capsys.readouterr().out
    shutil.copytree(tmp_path / "qat-assistant", tmp_path / "quantised-assistant")
    before, after, drafted = greedy(nursery, source), greedy(nursery, found), greedy(nursery, found, mtp=True)
    assert tokens_of(after) == tokens_of(before) == tokens_of(drafted)
    for one, other in zip(after, before, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=0.1), "weights differ by bfloat16's last bit (0.05 seen)"
    assert accept_length(drafted) > 1.5
