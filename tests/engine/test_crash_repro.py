"""Every script of ``crash_repro``: wrong on stock SGLang and right with the package, as the table of its TRIAGE_REPORT.md says.

Scripts are found in the folder and run in processes forked from a nursery, their engines too; ``python crash_repro/NAME.py`` runs the same.
"""

import re
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from crash_repro.engines import KERNELS_OFF
from sglang_gemma4.patches import names
from tests.harness.engine_fork import Nursery

FOLDER = Path(__file__).parents[2] / "crash_repro"
ROWS = re.findall(r"^\| (.+?) \| `(\w+)\.py`[^|]* \| (.+?) \|$", (FOLDER / "TRIAGE_REPORT.md").read_text(), re.MULTILINE)
SCRIPTS = sorted(path.stem for path in FOLDER.glob("*.py") if re.search(r"sys\.exit\((\w+\.)?main\(", path.read_text()))
RIGHT, WRONG, OPEN = 0, 1, 3
TIME_LIMIT = 400.0
ARMS = {"stock": {"SGLANG_GEMMA4": "0"}, "package": {"SGLANG_GEMMA4_STRICT": "1", **dict.fromkeys(KERNELS_OFF, "")}}
"""The interpreting nursery has kernels off; a script is to be quick as an operator runs it."""
OWN_PATCHES = {"stock": r"stock_but\(", "package": r"package_with\("}
"""Where a script's engines have environments of their own, in which they place their patches; those of all others are placed once for each
arm. ``engines.PLACED`` has a script fail that is wrongly among the others."""
BEFORE_PATCHES = r"\bprepare[=(]|\bload_plugins\b|TRITON_INTERPRET"
"""What a script does before the patches are placed."""


@dataclass
class Row:
    """What the report says of a script."""

    failure: str
    state: str

    @property
    def status(self) -> dict[str, int]:
        """The exit status by arm."""
        return dict.fromkeys(ARMS, OPEN) if self.state.startswith("**open**") else {"stock": WRONG, "package": RIGHT}


REPORT = {script: Row(failure, state) for failure, script, state in ROWS}


def test_the_report_lists_every_script_once() -> None:
    assert sorted(script for _, script, _ in ROWS) == SCRIPTS


@pytest.mark.parametrize("script", sorted(REPORT))
def test_a_row_is_repaired_by_a_patch_or_open(script: str) -> None:
    named = re.findall(r"`(\w+)`", REPORT[script].state)
    assert REPORT[script].state.startswith(("repaired: `", "**open**"))
    assert named
    assert set(named) <= set(names())
    assert f"\n## {REPORT[script].failure}" in (FOLDER / "TRIAGE_REPORT.md").read_text()


@pytest.mark.parametrize("arm", list(ARMS))
@pytest.mark.parametrize("script", SCRIPTS)
def test_the_script_ends_as_the_report_says(script: str, arm: str, request: pytest.FixtureRequest) -> None:
    path = FOLDER / f"{script}.py"
    text = path.read_text()
    interpreted = "TRITON_INTERPRET" in text
    own_patches = bool(re.search(f"{OWN_PATCHES[arm]}|{BEFORE_PATCHES}", text))
    # "interpreting: Nursery", by which the scheduler lets this file begin first.
    nursery: Nursery = request.getfixturevalue("interpreting" if interpreted else "nursery")
    started = time.monotonic()
    status, printed = nursery.run_script(path, ARMS[arm], TIME_LIMIT, own_patches)
    print(f"{script} on {arm}: status {status} after {time.monotonic() - started:.1f} s")
    expected = REPORT[script].status if script in REPORT else Row("", "repaired").status
    assert "saw:" in printed, printed[-3000:]
    assert status == expected[arm], printed[-3000:]
