"""A MoE engine before and after a real weight update, against transformers."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "crash_repro" / "router_scale.py"


@pytest.mark.parametrize(("switch", "status"), [("1", 0), ("0", 1)])
def test_tokens_follow_an_update(switch: str, status: int) -> None:
    """``crash_repro/router_scale.py``: right with the patch, wrong without."""
    env = {**os.environ, "SGLANG_GEMMA4_ROUTER_SCALE": switch, "SGLANG_GEMMA4_STRICT": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, str(SCRIPT)], env=env, capture_output=True, text=True, timeout=600)
    assert "expected: [[[" in done.stdout, done.stdout + done.stderr
    assert "saw:      [[[" in done.stdout, done.stdout + done.stderr
    assert done.returncode == status, done.stdout
