"""The client's side of the nursery: answers that come at once, and those that never come."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import engine_fork
from tests.harness.engine_fork import EngineFailed, Group, Nursery

STANDIN = """
import json, os, subprocess, sys, time
for line in sys.stdin:
    case = json.loads(line)
    how = case["engine"]["how"]
    if how == "ends":
        sys.exit()
    engine = subprocess.Popen(["sleep", "60"], start_new_session=True)
    said = json.dumps({"pid": engine.pid}) + "\\n"
    if how == "hangs, and its end is reported":
        os.write(1, said.encode())
        engine.wait()
    elif how == "hangs, and its end is not reported":
        os.write(1, said.encode())
        time.sleep(60)
    open(case["log"], "w").write(how)
    os.write(1, ((said if how == "answers at once" else "") + json.dumps({"groups": []}) + "\\n").encode())
"""
"""A nursery that starts in a moment and does as a case says."""


@pytest.fixture
def nursery(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nursery]:
    (tmp_path / "nursery.py").write_text(STANDIN)
    monkeypatch.setattr(engine_fork, "HERE", tmp_path)
    yield from engine_fork.open_nursery(tmp_path)


def ask(nursery: Nursery, how: str) -> None:
    """One case; it has two seconds."""
    nursery.run("model", [Group([[2]])], None, 2.0, how=how)


def test_an_answer_that_comes_with_its_process_id(nursery: Nursery) -> None:
    ask(nursery, "answers at once")


@pytest.mark.parametrize("how", ["ends", "hangs, and its end is reported", "hangs, and its end is not reported"])
def test_the_case_after_a_failure_gets_its_own_answer(how: str, nursery: Nursery, monkeypatch: pytest.MonkeyPatch) -> None:
    if how.endswith("not reported"):  # a report may take long on a busy machine
        monkeypatch.setattr(engine_fork, "SECONDS_TO_END", 0.5)
    before = nursery.process.pid
    with pytest.raises(EngineFailed, match="the nursery ended" if how == "ends" else "time limit reached"):
        ask(nursery, how)
    ask(nursery, "answers at once")
    assert (nursery.process.pid == before) == (how == "hangs, and its end is reported")
