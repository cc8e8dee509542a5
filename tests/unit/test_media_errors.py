"""Media that a server cannot open or decode is the client's error: a ValueError, which SGLang answers with status 400."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from sglang.srt.utils import common, video_decoder

from sglang_gemma4.serving.media.processors import as_client_error


def fails(load: Callable[..., Any], source: Any, **options: Any) -> str:
    """What SGLang's own ``load`` and ours around it say."""
    with pytest.raises(ValueError, match=r"give|install") as error:
        as_client_error(load, source, **options)
    assert isinstance(error.value, common.CLIENT_MEDIA_EXCEPTIONS)
    return str(error.value)


def test_a_video_where_no_decoder_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(video_decoder, "_BACKEND", "decord")  # as the import of torchcodec leaves it where that fails
    monkeypatch.setitem(sys.modules, "decord", None)
    with pytest.raises(ImportError):
        common.load_video(b"a film", use_gpu=False)
    said = fails(common.load_video, b"a film", use_gpu=False)
    assert said.startswith("this server cannot decode any video: ")
    assert "decord" in said


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    assert "give an http(s) address, a data: address or a file" in fails(common.load_image, str(tmp_path / "none.png"))


def test_what_is_no_image_is_named_without_an_address() -> None:
    with pytest.raises(ValueError, match=r"cannot identify image file what was sent$"):
        as_client_error(common.load_image, b"no image at all")


def test_an_image_larger_than_pillow_decodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.new("RGB", (64, 64)).save(tmp_path / "large.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    assert "4096 pixels" in fails(common.load_image, str(tmp_path / "large.png"))
