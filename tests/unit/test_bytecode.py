"""Whether SGLang's bytecode is kept is said where it costs starts: real Python processes with and without a folder of bytecode."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from sglang_gemma4.diagnostics import doctor
from sglang_gemma4.start import bytecode, table

PROGRAM = "from sglang_gemma4.start import bytecode; print(bytecode.reason_against())"
FOUND = find_spec("sglang")
assert FOUND is not None
assert FOUND.submodule_search_locations
SOURCE = Path(FOUND.submodule_search_locations[0]) / bytecode.SEEN


def said(folder: Path, **environment: str) -> str:
    """What a process says whose bytecode would be in ``folder``."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environ |= {"PYTHONPYCACHEPREFIX": str(folder), **environment}
    return subprocess.run([sys.executable, "-c", PROGRAM], env=environ, capture_output=True, text=True, check=True).stdout.strip()


def test_where_nothing_is_kept_it_says_what_to_run(tmp_path: Path) -> None:
    message = said(tmp_path, PYTHONDONTWRITEBYTECODE="1")
    assert message == (
        "SGLang's bytecode is nowhere and not kept (PYTHONDONTWRITEBYTECODE is set): each process compiles its modules again. Run once: "
        f"python -m compileall -q -j 0 {SOURCE.parents[2]}"
    )
    assert said(tmp_path) == "None", "the first start keeps it"


def test_where_it_is_found_it_says_nothing(tmp_path: Path) -> None:
    make = f"import py_compile; py_compile.compile({str(SOURCE)!r}, doraise=True)"
    subprocess.run([sys.executable, "-c", make], env={**os.environ, "PYTHONPYCACHEPREFIX": str(tmp_path)}, check=True)
    assert said(tmp_path, PYTHONDONTWRITEBYTECODE="1") == "None"


def test_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(os, "access", lambda _path, _mode: False)  # root may write everywhere
    assert f"({tmp_path} cannot be written)" in str(bytecode.reason_against())


def test_doctor_and_the_start_table_show_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert "  slow starts        SGLang's bytecode is nowhere" in doctor.installation_text(doctor.installation())
    shown = table.lines({"seconds": 10.0, "parts": [], "bytecode": bytecode.reason_against()})
    assert shown[-1].startswith("  SGLang's bytecode is nowhere and not kept")
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    assert "slow starts" not in doctor.installation_text(doctor.installation())
    assert table.lines({"seconds": 10.0, "parts": []}) == ["ready after 10.0 s"]
