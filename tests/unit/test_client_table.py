"""The table of docs/clients.md against what clients got, and the ends of processes that clients start."""

import os
import sys
from typing import Any

import pytest

from tests.clients import rows, run

HEADED = [*run.heading(), "| a | 1.0 | `/v1/x` | ok | ? | - | refused | ok | ok | ok |", "- a, `/v1/x`, structured: refused: no"]


def told(feature: str, verdict: str, said: str = "", version: str = "1.0") -> Any:
    """A client's line for a feature."""
    return {"client": "a", "version": version, "endpoint": "/v1/x", "feature": feature, "verdict": verdict, "said": said}


@pytest.mark.parametrize("verdict", ["ok", "wrong", "refused", "-"])
def test_a_cell_that_was_not_measured_may_be_anything(verdict: str) -> None:
    different, unmeasured = run.differences([told("streamed", verdict, "late")], HEADED)
    assert different == []
    assert unmeasured == [f"a 1.0, /v1/x, streamed: {verdict} late"]


@pytest.mark.parametrize(
    "line",
    [
        told("chat", "wrong", "late"),
        told("chat", "-"),
        told("tools", "ok"),
        told("chat", "ok", version="2.0"),
        told("structured", "refused", "other"),
        told("structured", "ok"),
    ],
)
def test_every_other_cell_is_as_documented(line: Any) -> None:
    assert len(run.differences([line], HEADED)[0]) == 1


def test_what_is_as_documented_is_no_difference() -> None:
    assert run.differences([told("chat", "ok"), told("tools", "-"), told("structured", "refused", "no")], HEADED) == ([], [])


def test_nothing_is_said_of_cells_that_were_not_measured() -> None:
    lines = run.DOCS.read_text().splitlines()
    measured = not any(line.startswith("| ") and "| ? |" in line for line in lines)
    assert measured or "Nothing is refused." not in lines


def test_nothing_that_a_client_started_goes_on() -> None:
    read, write = os.pipe()
    program = f"import subprocess; subprocess.Popen(['sleep', '1000'], pass_fds=[{write}]); print('ended')"
    status, out, _ = run.ended([sys.executable, "-c", program], 60, pass_fds=[write])
    os.close(write)
    with os.fdopen(read) as pipe:
        assert pipe.read() == ""  # it ends where nothing holds the other end
    assert (status, out) == (0, "ended\n")


def test_a_program_that_fails_has_its_last_words() -> None:
    with pytest.raises(AssertionError, match="status 3: lost"):
        rows.ended([sys.executable, "-c", "import sys; sys.stderr.write('lost'); sys.exit(3)"])
