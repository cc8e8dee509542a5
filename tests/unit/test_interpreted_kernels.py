"""Kernels under Triton's interpreter, in a process of its own: Triton decides at its import what is interpreted."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_kernels_equal_their_references(pytestconfig: pytest.Config) -> None:
    """All of ``tests/interpreted``; a skipped or missing test there fails this one."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/interpreted"]
    command += ["--all"] if pytestconfig.getoption("--all") else []
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900)
    print(ran.stdout[-3000:])
    assert ran.returncode == 0, ran.stdout[-6000:] + ran.stderr[-2000:]
    assert " skipped" not in ran.stdout
