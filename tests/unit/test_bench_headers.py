"""The header of every raw file says what was run on what: commit, sources, versions, flags, card and driver."""

import os
import shutil
from pathlib import Path

import pytest

from sglang_gemma4.benchmark import command, machine
from sglang_gemma4.benchmark.arms import Arm
from sglang_gemma4.benchmark.plan import Plan


def test_a_run_s_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'NVIDIA H200, 143771, 580.159.04'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SGLANG_GEMMA4_NORMS", "0")
    monkeypatch.setattr("sys.argv", ["sglang-gemma4", "bench", "/models/gemma", "--", "--page-size=16"])
    arms = [Arm("stock", {"SGLANG_GEMMA4": "0"}, ("--page-size=16",)), Arm("package")]
    header = command._header(Plan("model", "model", arms, tmp_path, vllm_version="0.33.0"))
    assert header["command"] == ["sglang-gemma4", "bench", "gemma", "--", "--page-size=16"]
    assert header["arms"][0]["arguments"] == ["--page-size=16"]
    assert header["arms"][0]["environment"] == {"SGLANG_GEMMA4": "0"}
    assert header["environment"]["SGLANG_GEMMA4_NORMS"] == "0"
    assert header["device"] == {"name": "NVIDIA H200", "count": 1, "memory_gib": 140.4, "driver": "580.159.04"}
    assert {"commit", "sources", "sglang-gemma4", "sglang", "torch", "triton"} <= set(header["versions"])
    assert header["versions"]["vllm"] == "0.33.0"


def test_a_copy_without_git_has_the_checkout_s_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is given a copy of the tree knows no commit; the digest tells which one it was."""
    copy = tmp_path / "sglang_gemma4"
    shutil.copytree(machine.PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    assert not (copy / "patches").is_symlink()
    assert machine.sources(copy) == machine.sources()
    monkeypatch.setattr(machine, "PACKAGE", copy)
    assert machine.commit() == "unknown"
    (copy / "patches" / "one_more.py").write_text("")
    assert machine.sources(copy) != machine.sources(Path(command.__file__).parents[1])
