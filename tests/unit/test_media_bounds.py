"""Images and sounds are decoded within bounds, and downloads end in time: around SGLang's own loaders, without an engine."""

import contextlib
import io
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import requests
import soundfile  # type: ignore[import-untyped]
from PIL import Image
from sglang.srt.utils import common

from sglang_gemma4.serving.media import decoding, downloads, pictures, served


@pytest.fixture(autouse=True)
def gemma4(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process serves one."""
    monkeypatch.setattr(served, "is_gemma4", lambda: True)


def sound(samples: Any, rate: int = 16_000, form: str = "WAV") -> bytes:
    written = io.BytesIO()
    soundfile.write(written, samples, rate, format=form, subtype="FLOAT" if form == "WAV" else None)
    return written.getvalue()


TONE = (0.2 * numpy.sin(numpy.arange(16_000) / 6)).astype("float32")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (sound(TONE[:0]), "it is empty"),
        (sound(numpy.where(numpy.arange(16_000) == 9, numpy.nan, TONE)), "no numbers"),
        (sound(TONE.clip(-1, 0) + numpy.float32("inf")), "no numbers"),
        (sound(TONE[:400], 1), "400.0 s long and a clip may be 300 s"),
        (sound(TONE[:100], 9001), "9001 samples a second"),
        (sound(numpy.zeros(16_000 * 400, "int16"), form="FLAC"), "400.0 s long"),
        (sound(TONE)[:40], "Could not decode audio"),
        (b"hello", "Could not decode audio"),
        (b"", "Could not decode audio"),
    ],
    ids=["empty", "not a number", "infinite", "long", "odd rate", "long FLAC", "cut off", "text", "no byte"],
)
def test_sounds_that_are_refused(data: bytes, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        decoding.load_sound_within(common.load_audio, data)


@pytest.mark.parametrize(
    ("samples", "rate", "length"), [(TONE, 16_000, 16_000), (numpy.stack([TONE] * 8, 1), 16_000, 16_000), (TONE, 8_000, 32_000)]
)
def test_sounds_that_are_taken(samples: Any, rate: int, length: int) -> None:
    assert decoding.load_sound_within(common.load_audio, sound(samples, rate)).shape == (length,)


def test_a_file_address_is_unquoted_as_sglang_does(tmp_path: Path) -> None:
    path = tmp_path / "a song.wav"
    path.write_bytes(sound(TONE))
    assert decoding.load_sound_within(common.load_audio, f"file://{tmp_path}/a%20song.wav").shape == common.load_audio(str(path)).shape


def test_sounds_in_containers_are_counted_while_they_are_decoded() -> None:
    """PyAV need not be installed: what its decoder calls for each packet is called here."""
    chunk: Any = numpy.zeros(16_000 * 30, "float32")
    for number in range(1, 16):
        decoding.count_samples(None, [chunk] * number)
    with pytest.raises(ValueError, match="longer than 300 s"):
        decoding.count_samples(None, [chunk] * 16)


def test_one_requests_sounds_and_images_share_a_budget() -> None:
    budget = decoding.Budget()
    for _ in range(4):
        budget.take_image(10_000, 5_000)
    with pytest.raises(ValueError, match="images of one request"):
        budget.take_image(1, 1)
    for _ in range(12):
        budget.take_sound(5_000_000, 1, 48_000)
    with pytest.raises(ValueError, match="audio clips of one request"):
        budget.take_sound(1, 1, 16_000)


def test_the_budget_comes_with_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """SGLang's loading threads see the address only."""
    hold(monkeypatch)
    budget = decoding.Budget(pixels=900_000)
    address = decoding.Address.within(common.ImageData(url=png(Image.new("RGB", (9, 9)))), budget)
    decoding.load_within(common.load_image, address)
    assert budget.pixels == 400_000
    with pytest.raises(ValueError, match="images of one request"):
        decoding.load_within(common.load_image, address)
    decoding.load_within(common.load_image, str(address.url))


def png(image: Image.Image, form: str = "PNG", **options: Any) -> str:
    import base64

    written = io.BytesIO()
    image.save(written, form, **options)
    return "data:;base64," + base64.b64encode(written.getvalue()).decode()


@pytest.mark.parametrize("size", [(10_000, 5_001), (0, 5)])
def test_images_that_are_refused(size: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match=f"{size[0]} x {size[1]} pixels"):
        decoding.judge_image(SimpleNamespace(format="PNG", size=size))
    with pytest.raises(ValueError, match="EPS are not decoded"):
        decoding.judge_image(SimpleNamespace(format="EPS", size=(3, 3)))


def test_an_image_that_nvjpeg_rejects_is_charged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """SGLang gives it to Pillow then."""
    hold(monkeypatch)
    data, budget = jpeg(Image.new("RGB", (1000, 1000))), decoding.Budget(pixels=1_500_000)

    def load(_source: Any) -> Any:
        assert pictures.plain_jpeg(True, data)
        return common.load_image(data, False)

    decoding.load_within(load, decoding.Address.within("x", budget))
    assert budget.pixels == 500_000
    with pytest.raises(ValueError, match="images of one request"):
        decoding.load_within(load, decoding.Address.within("x", budget))


def jpeg(image: Image.Image, **options: Any) -> bytes:
    written = io.BytesIO()
    image.save(written, "JPEG", **options)
    return written.getvalue()


def hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hooks of the patch ``media_bounds`` in SGLang's own loaders."""
    fully = common._fully_load_pil_image

    def judged(image: Any) -> Any:
        decoding.judge_image(image)
        return fully(image)

    monkeypatch.setattr(common, "_fully_load_pil_image", judged)


def test_other_models_media_are_stocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Images as they lie in the file and of any size, sounds of any length, JPEGs of all kinds for nvJPEG, downloads without a watch."""
    hold(monkeypatch)
    monkeypatch.setattr(served, "is_gemma4", lambda: False)
    monkeypatch.setattr(decoding, "IMAGE_PIXELS", 100)
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = jpeg(Image.new("L", (40, 26)), exif=exif)
    assert pictures.load(common.load_image, turned, False)[0].size == (40, 26)
    assert pictures.plain_jpeg(True, turned)
    assert not pictures.plain_jpeg(False, turned)
    assert decoding.load_sound_within(common.load_audio, sound(TONE[:400], 1)).shape == (400 * 16_000,)
    assert not numpy.isfinite(decoding.load_sound_within(common.load_audio, sound(TONE + numpy.float32("inf")))).any()
    chunk: Any = numpy.zeros(16_000 * 30, "float32")
    decoding.count_samples(None, [chunk] * 16)
    assert downloads.download(lambda *_args, **_kwargs: b"watched" if downloads._here.download else b"not", "a", 3) == b"not"


@contextlib.contextmanager
def server(*sent: bytes, pause: float = 0.2, then_forever: bytes = b"") -> Iterator[str]:
    """An address that answers each connection with pieces, a pause between them."""
    listener = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection = listener.accept()[0]
                for piece in sent:
                    connection.sendall(piece)
                    time.sleep(pause)
                while then_forever:
                    connection.sendall(then_forever)
                    time.sleep(pause)
                connection.close()

    threading.Thread(target=answer, daemon=True).start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}/x"
    listener.close()


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> None:
    stock = common.get_mm_http_session
    monkeypatch.setattr(common, "get_mm_http_session", lambda: downloads.watched_session(stock))


OK = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.usefixtures("watched")
@pytest.mark.parametrize(
    ("sent", "forever"),
    [((OK + b"Content-Length: 60000\r\n\r\n",), b"x"), ((b"HTTP/1.1 200 OK\r\n",), b"A: b\r\n"), ((b"H",), b""), ((OK + b"\r\n",), b"x")],
    ids=["body", "headers", "nothing", "endless"],
)
def test_a_slow_server_costs_its_time_and_no_more(sent: tuple[bytes, ...], forever: bytes) -> None:
    with server(*sent, pause=0.2 if forever else 30, then_forever=forever) as address:
        began = time.monotonic()
        with pytest.raises((ValueError, requests.RequestException)):
            downloads.download(common.download_remote_media, address, timeout=1)
        assert time.monotonic() - began < 25, "stock waits 30 s for each read"
    assert downloads._here.download is None


@pytest.mark.usefixtures("watched")
def test_a_download_that_is_in_time() -> None:
    with server(OK + b"Content-Length: 4\r\nConnection: close\r\n\r\n", b"body") as address:
        assert downloads.download(common.download_remote_media, address, timeout=5) == b"body"


def test_addresses_of_a_name_share_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full backlog accepts nobody: the second address gets what the first left."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=0)
    port = listener.getsockname()[1]
    held = [socket.socket() for _ in range(4)]
    for one in held:
        one.setblocking(False)
        one.connect_ex(("127.0.0.1", port))
    entry = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_args: [entry] * 5)
    began = time.monotonic()
    with pytest.raises(OSError, match=r"timed out|answers"):
        downloads.connect("a.name", port, 1.0)
    assert time.monotonic() - began < 25
