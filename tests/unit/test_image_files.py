"""Image files of each mode, each EXIF orientation, both JPEG decoders and three budgets: what SGLang's processor makes is transformers'.

SGLang's own processor object runs with the patches in place, in a forked process. torchvision's decoder for CPUs stands for nvJPEG.
"""

import asyncio
import base64
import http.server
import io
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy
import pytest
from PIL import Image
from sglang.srt import runtime_context
from sglang.srt.managers import tokenizer_manager  # noqa: F401 - patches look into it: imported once, for all forks
from sglang.srt.managers.io_struct import GenerateReqInput
from sglang.srt.multimodal.processors.gemma4 import Gemma4SGLangProcessor
from sglang.srt.server_args import ServerArgs
from transformers import AutoConfig, AutoProcessor
from transformers.image_utils import load_image

from crash_repro.grayscale_jpeg import decode_as_cards_do
from sglang_gemma4 import tiny
from sglang_gemma4.serving.media import pictures, served
from tests.harness.child import run_in_child

MODEL = Path(tiny.__file__).parent / "checkpoints" / "tiny-26b-a4b"
CARRIERS = (
    *(("1", "PNG"), ("L", "PNG"), ("LA", "PNG"), ("P", "PNG"), ("RGB", "PNG"), ("RGBA", "PNG"), ("I;16", "PNG")),
    *(("L", "JPEG"), ("RGB", "JPEG"), ("CMYK", "JPEG"), ("YCbCr", "JPEG"), ("RGB", "WEBP"), ("RGBA", "WEBP"), ("HSV", "WEBP")),
    *(("PA", "TIFF"), ("RGBX", "TIFF"), ("CMYK", "TIFF"), ("LAB", "TIFF"), ("I", "TIFF"), ("F", "TIFF")),
)
"""Modes, with each a format that carries them and an orientation."""
BUDGETS = (70, 280, 1120)
JPEG_STEP = 3 / 255
"""By how much libjpeg of torchvision's wheel and of Pillow's differ at most, after a resize."""


def drawn(mode: str) -> Image.Image:
    """A picture without a symmetry, of 40 x 26 pixels."""
    noise = numpy.random.default_rng(3).integers(0, 256, (13, 20, 3), dtype="uint8")
    picture = Image.fromarray(noise).resize((40, 26), Image.Resampling.BILINEAR)
    if mode == "LAB":
        return Image.frombytes("LAB", picture.size, picture.tobytes())
    if mode == "I;16":
        return Image.fromarray(numpy.asarray(picture.convert("L"), "uint16") * 257)
    if mode == "P":
        return picture.quantize(20)
    return picture.convert(mode)


def file(mode: str, form: str, orientation: int, **options: Any) -> bytes:
    exif, written = Image.Exif(), io.BytesIO()
    exif[0x0112] = orientation
    drawn(mode).save(written, form, exif=exif, **options)
    return written.getvalue()


def address(data: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(data).decode()


def place_patches() -> None:
    from sglang_gemma4 import patching
    from sglang_gemma4.patches import load

    outcomes = patching.apply([load("media_bounds"), load("request_media")])
    assert all(one.state == "active" for one in outcomes if one.name in ("media_bounds", "request_media")), outcomes


def processor(**config: int) -> Any:
    """SGLang's processor of tiny-26b-a4b, as its server makes it with ``--mm-process-config`` of images."""
    path = str(MODEL)
    args = ServerArgs(model_path=path, device="cpu", attention_backend="triton", mm_process_config={"image": config})
    runtime_context.publish(args, role="test")
    return Gemma4SGLangProcessor(AutoConfig.from_pretrained(path), args, reference(), "default", skip_mm_pool=True)


def reference() -> Any:
    return AutoProcessor.from_pretrained(MODEL)


def ours(served: Any, given: list[Any], prompt: Any = None, **fields: Any) -> Any:
    """A request's items and ids as SGLang's processor makes them."""
    text = prompt or "<bos>" + "<|image|> and " * len(given)
    request = GenerateReqInput(text=text if isinstance(text, str) else None, image_data=given, **fields)
    return asyncio.run(served.process_mm_data_async(image_data=given, input_text=text, request_obj=request, max_req_input_len=10**6))


def theirs(made: Any, given: list[bytes], budget: int) -> Any:
    """transformers' own, of images that it loads itself."""
    loaded = [load_image(Image.open(io.BytesIO(data))) for data in given]
    text = "<bos>" + "<|image|> and " * len(given)
    return made(text=[text], images=[loaded], return_tensors="pt", add_special_tokens=False, images_kwargs={"max_soft_tokens": budget})


def differences(found: Any, expected: Any, step: float) -> list[str]:
    """What of a request is not as transformers has it: pixels by more than ``step``."""
    import torch

    wrong = [] if found.input_ids == expected["input_ids"][0].tolist() else ["ids"]
    for number, item in enumerate(found.mm_items):
        if not torch.equal(item.image_position_ids[0], expected["image_position_ids"][number]):
            wrong.append(f"positions of {number}")
        elif (off := float((item.feature[0] - expected["pixel_values"][number]).abs().max())) > step:
            wrong.append(f"pixels of {number} by {off}")
    return wrong if len(found.mm_items) == len(expected["pixel_values"]) else ["number"]


@pytest.fixture(scope="module")
def seen() -> Any:
    """What one forked process finds: patching SGLang cannot be undone."""

    def child() -> dict[str, Any]:
        place_patches()
        served, made = processor(), reference()
        found = {"Pillow": all_files(served, made, 0.0), "ways": ways(served, made)}
        decode_as_cards_do()
        return found | {"nvJPEG": all_files(served, made, JPEG_STEP)}

    return run_in_child(child)


def all_files(served: Any, made: Any, step: float, each: bool = False) -> dict[str, list[str]]:
    """What is wrong, by orientation and budget; with ``each`` all of both, else larger budgets where pictures are turned by 90 degrees."""
    found = {}
    for orientation in range(1, 9):
        files = [file(mode, form, orientation) for mode, form in CARRIERS]
        given = [data if number % 2 else address(data) for number, data in enumerate(files)]
        for budget in BUDGETS if each or orientation == 6 else BUDGETS[:1]:
            asked = {"mm_processor_kwargs": {"max_soft_tokens": budget}} if budget != BUDGETS[0] else {}
            if wrong := differences(ours(served, given, **asked), theirs(made, files, budget), step):
                found[f"orientation {orientation}, {budget} tokens"] = wrong
    return found


def ways(served: Any, made: Any) -> dict[str, bool]:
    data = file("RGB", "PNG", 6)
    image = Image.open(io.BytesIO(data))
    with served_file(data) as url:
        given = [url, data, address(data), base64.b64encode(data).decode(), image]
        found = ours(served, given)
    return {
        "turned": differences(found, theirs(made, [data] * len(given), BUDGETS[0]), 0.0) == [],
        "the caller's stays": image.size == (40, 26) and pictures.orientation(image) == 6,
    }


@pytest.mark.parametrize("decoder", ["Pillow", "nvJPEG"])
def test_each_mode_and_orientation(decoder: str, seen: Any) -> None:
    """All modes stand in one request: those that nvJPEG decodes beside those that it does not."""
    assert seen[decoder] == {}


def test_each_orientation_at_each_budget() -> None:
    def child() -> dict[str, list[str]]:
        place_patches()
        served, made = processor(), reference()
        found = all_files(served, made, 0.0, each=True)
        decode_as_cards_do()
        return found | all_files(served, made, JPEG_STEP, each=True)

    assert run_in_child(child) == {}


def test_the_ways_an_image_comes(seen: Any) -> None:
    """By http, as bytes, as base64, as a decoded image of the Engine's caller, whose own image stays as it is."""
    assert seen["ways"] == {"turned": True, "the caller's stays": True}


@contextmanager
def served_file(data: bytes) -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/picture"
    finally:
        server.shutdown()


def test_only_plain_jpegs_go_to_nvjpeg(monkeypatch: pytest.MonkeyPatch) -> None:
    """nvJPEG turns nothing, returns a file's own channels, and takes three of them for luma and chroma."""
    monkeypatch.setattr(served, "is_gemma4", lambda: True)
    assert pictures.plain_jpeg(True, file("RGB", "JPEG", 1))
    assert pictures.plain_jpeg(True, file("YCbCr", "JPEG", 1))
    for other in (file("L", "JPEG", 1), file("CMYK", "JPEG", 1), file("RGB", "JPEG", 1, keep_rgb=True), b"\xff\xd8\xff\xd9", b""):
        assert not pictures.plain_jpeg(True, other)
    assert not any(pictures.plain_jpeg(True, file("RGB", "JPEG", orientation)) for orientation in range(2, 9))
    assert not pictures.plain_jpeg(False, file("RGB", "JPEG", 1))


@pytest.mark.parametrize("exif", [b"Exif\0\0II*\0\x08\0\0\0\xff\xff", b"Exif\0\0nonsense", b"\0" * 30])
def test_a_tag_that_cannot_be_read_turns_nothing(exif: bytes) -> None:
    image = drawn("RGB")
    image.info["exif"] = exif
    assert pictures.upright(image) is image


def test_other_values_turn_nothing() -> None:
    for value in (0, 9, 65535):
        image = Image.open(io.BytesIO(file("RGB", "PNG", value)))
        assert pictures.upright(image) is image


def test_an_image_is_turned_once() -> None:
    turned = pictures.upright(Image.open(io.BytesIO(file("RGB", "JPEG", 6))))
    assert turned.size == (26, 40)
    assert pictures.upright(turned) is turned
