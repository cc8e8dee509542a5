"""A real trtllm_mha backend at the end of the context."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "crash_repro" / "page_table_rows.py"


@pytest.mark.parametrize(("switch", "status"), [("1", 0), ("0", 1)])
def test_rows_at_the_end_of_the_context(switch: str, status: int) -> None:
    """``crash_repro/page_table_rows.py``: right with the patch, wrong without."""
    env = {**os.environ, "SGLANG_GEMMA4_PAGE_TABLE": switch, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, str(SCRIPT)], env=env, capture_output=True, text=True, timeout=300)
    assert done.stdout.count("expected: [[") == done.stdout.count("saw:      [[") == 2, done.stdout + done.stderr
    assert done.returncode == status, done.stdout
