"""What is kept for the next start: found again under its own key alone, and never in the way."""

import logging
from pathlib import Path

import pytest

from sglang_gemma4.patching.switches import CACHE_DIR, check_all
from sglang_gemma4.start import folder

KEY = {"model": [4, 2], "dtype": "torch.bfloat16"}


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CACHE_DIR, str(tmp_path / "made"))
    return tmp_path / "made"


def test_kept_by_card_and_key(kept: Path) -> None:
    folder.save("choice", "NVIDIA H200", KEY, {"least": 1024})
    assert folder.load("choice", "NVIDIA H200", KEY) == {"least": 1024}
    assert folder.load("choice", "NVIDIA L40S", KEY) is None
    assert folder.load("choice", "NVIDIA H200", KEY | {"dtype": "torch.float16"}) is None
    assert folder.load("other", "NVIDIA H200", KEY) is None
    (path,) = (kept / "NVIDIA-H200").iterdir()
    assert path.name.startswith("choice-")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"key": {"model": [5, 2]}, "value": {"least": 1}}', '{"value": 3}', "\x00\xff"])
def test_a_file_that_is_something_else_is_told_and_not_used(kept: Path, text: str, caplog: pytest.LogCaptureFixture) -> None:
    path = folder.place("choice", "NVIDIA H200", KEY)
    assert path is not None
    path.parent.mkdir(parents=True)
    path.write_bytes(text.encode("latin-1"))
    with caplog.at_level(logging.WARNING):
        assert folder.load("choice", "NVIDIA H200", KEY) is None
    assert f"{path} is not used" in caplog.text
    folder.save("choice", "NVIDIA H200", KEY, 7)
    assert folder.load("choice", "NVIDIA H200", KEY) == 7


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(CACHE_DIR, str(tmp_path / "file"))
    with caplog.at_level(logging.WARNING):
        folder.save("choice", "NVIDIA H200", KEY, 7)
    assert "cannot be kept for the next start" in caplog.text


def test_empty_keeps_nothing_and_unset_is_at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    assert folder.root({CACHE_DIR: " "}) is None
    assert folder.root({}) == Path(folder.DEFAULT).expanduser()
    assert check_all({CACHE_DIR: "/somewhere"}) == []
    monkeypatch.setenv(CACHE_DIR, "")
    folder.save("choice", "NVIDIA H200", KEY, 7)
    assert folder.load("choice", "NVIDIA H200", KEY) is None


def test_versions_name_what_decides() -> None:
    found = folder.versions()
    assert set(found) == {"sglang-gemma4", *folder.DISTRIBUTIONS}
    assert "not installed" not in (found["sglang"], found["torch"], found["triton"])
