"""What cannot work is refused in one line before any weight is loaded: by ``launch_server`` itself and by an Engine."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sglang_gemma4.cpu.environment import launch_environment
from sglang_gemma4.tiny import checkpoints
from tests.engine.engine_fork import EngineFailed, Group, Nursery

TARGET = checkpoints.SHIPPED / "tiny-26b-a4b"
WRONG = checkpoints.SHIPPED / "tiny-e2b-assistant"


def test_launch_server_ends_with_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sglang.launch_server", "--model-path", str(TARGET), "--device", "cpu"]
    command += ["--speculative-algorithm", "NEXTN", "--speculative-draft-model-path", str(WRONG)]
    done = subprocess.run(command, env=launch_environment(os.environ), capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(f"sglang-gemma4: assistant {WRONG} does not fit {TARGET}: its sliding_attention layers read 1 KV heads")
    assert "Traceback" not in done.stderr
    assert "Load weight" not in done.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"attention_backend": "flashinfer"}, "--attention-backend flashinfer cannot serve Gemma 4; use one of triton"),
        ({"speculative_algorithm": "NEXTN"}, "needs Gemma 4's MTP assistant; add --speculative-draft-model-path"),
        ({"speculative_algorithm": "NEXTN", "speculative_draft_model_path": WRONG}, "does not fit"),
    ],
)
def test_an_engine_raises(options: dict[str, object], said: str, nursery: Nursery) -> None:
    with pytest.raises(EngineFailed) as error:
        nursery.run(TARGET, [Group([[2, 300]])], None, 60.0, **options)
    assert "PreflightError" in str(error.value)
    assert said in str(error.value)
    assert "Load weight begin" not in str(error.value)


def test_an_unknown_model_is_one_line(nursery: Nursery) -> None:
    with pytest.raises(EngineFailed, match="model /nowhere/gemma does not exist; give a checkpoint's directory"):
        nursery.run("/nowhere/gemma", [Group([[2, 300]])], None, 60.0)
