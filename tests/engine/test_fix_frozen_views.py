"""The frozen draft's views of the target's KV: fa4's page tables, and an engine on a pair of backends."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine.conftest import KERNELS_OFF

SCRIPTS = Path(__file__).parents[2] / "crash_repro"


@pytest.mark.parametrize(
    ("script", "switch", "status", "says"),
    [
        ("fa4_view", "1", 0, "'sliding': [3, 1, 2, 6, 5, 4]"),
        ("fa4_view", "0", 1, "'sliding': [11, 15, 9, 14, 12, 10]"),
        ("hybrid_view", "1", 0, "[["),
    ],
)
def test_the_draft_reads_the_targets_kv(script: str, switch: str, status: int, says: str) -> None:
    """``crash_repro``: right with the patch, wrong without."""
    env = {**os.environ, "SGLANG_GEMMA4_FROZEN_VIEWS": switch, "OMP_NUM_THREADS": "1", **KERNELS_OFF}
    done = subprocess.run([sys.executable, str(SCRIPTS / f"{script}.py")], env=env, capture_output=True, text=True, timeout=300)
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("saw:")] or [done.stdout + done.stderr]
    assert says in line
    assert done.returncode == status, done.stdout
