"""The harness's own switch, and that its page names every part."""

from pathlib import Path

import pytest

from tests import harness
from tests.harness import scheduler

FOLDER = Path(harness.__file__).parent


def test_a_part_is_off_where_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TEST_HARNESS_OFF", raising=False)
    assert not any(harness.is_off(part) for part in harness.PARTS)
    monkeypatch.setenv("TEST_HARNESS_OFF", "ports recordings")
    assert [part for part in harness.PARTS if harness.is_off(part)] == ["ports", "recordings"]


def test_a_name_that_is_no_part_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_HARNESS_OFF", "port")
    with pytest.raises(ValueError, match="TEST_HARNESS_OFF names 'port'; the parts are nursery, patched, "):
        harness.is_off("ports")


def test_the_page_names_each_part_and_each_module() -> None:
    page = (FOLDER / "README.md").read_text()
    modules = [path.name for path in FOLDER.iterdir() if path.suffix == ".py" or (path.is_dir() and path.name != "__pycache__")]
    missing = [name for name in (*harness.PARTS, *modules) if f"`{name}" not in page and name != "__init__.py"]
    assert missing == []


def test_the_scheduler_knows_files_that_exist() -> None:
    together = [name.removeprefix("/") for unit in scheduler.TOGETHER for name in unit]
    engine = scheduler.ROOT / "tests/engine"
    assert [name for name in (*scheduler.LONGEST, *together) if not (engine / name).exists()] == []
