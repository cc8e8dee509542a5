"""A grayscale or CMYK JPEG ends the scheduler where nvJPEG decodes it, and beside an RGB image is a 500. Needs no GPU.

nvJPEG gives an image as many channels as its file has; torchvision's decoder for CPUs does too, and stands for it here.
"""

import sys
from typing import Any

import case  # type: ignore[import-not-found]
import engines  # type: ignore[import-not-found]
import shipped  # type: ignore[import-not-found]

EXPECTED = {"RGB": "as decoded", "RGB beside L": "as decoded", "L": "as decoded", "CMYK": "as decoded", "RGB turned": "as decoded"}


def main() -> int:
    """Whether each JPEG is answered as the PNG of its pixels, which Pillow decodes, is."""
    seen = engines.ask(shipped.target(), "grayscale_jpeg:ask", prepare="grayscale_jpeg:decode_as_cards_do", skip_tokenizer_init=False)
    return int(case.verdict(EXPECTED, seen))


def decode_as_cards_do() -> None:
    """SGLang takes the path of nvJPEG, and torchvision decodes there on the CPU."""
    import torchvision.io  # type: ignore[import-untyped]
    from sglang.srt.utils import common

    asked, decode = common.is_cuda, torchvision.io.decode_jpeg
    common.is_cuda = lambda: sys._getframe(1).f_code.co_name == "is_jpeg_with_cuda" or asked()
    torchvision.io.decode_jpeg = lambda data, device="cpu", **options: decode(data, **options)


def ask(engine: Any, _extra: None) -> dict[str, str]:
    """The client."""
    files = pictures()
    asked = {"RGB": ["RGB"], "RGB beside L": ["RGB", "L"], "L": ["L"], "CMYK": ["CMYK"], "RGB turned": ["RGB turned"]}
    return {name: outcome(engine, [files[one] for one in names]) for name, names in asked.items()}


def outcome(engine: Any, pairs: list[tuple[str, str]]) -> str:
    """Whether JPEGs are answered as PNGs of the same pixels."""
    try:
        jpeg, png = (answer(engine, [pair[which] for pair in pairs]) for which in (0, 1))
    except Exception as error:  # what stock raises is a RuntimeError, which HTTP answers with 500
        return f"{type(error).__name__}: {error}"[:80]
    return "as decoded" if jpeg == png else f"otherwise than decoded: {jpeg}, {png}"


def answer(engine: Any, images: list[str]) -> list[float]:
    """Log-probabilities of four tokens."""
    text = "<bos>What colours are " + "<|image|> and " * len(images)
    sampling = {"max_new_tokens": 4, "temperature": 0, "ignore_eos": True}
    found = engine.generate(prompt=text, image_data=images, sampling_params=sampling, return_logprob=True)
    return [round(entry[0], 3) for entry in found["meta_info"]["output_token_logprobs"]]


def pictures() -> dict[str, tuple[str, str]]:
    """A JPEG of each kind and the PNG of what Pillow decodes from it, as data: addresses."""
    import io

    from PIL import Image, ImageOps

    from sglang_gemma4.tiny import images

    drawn, made = images.draw(1, "blue").resize((160, 80)), {}
    for name in ("RGB", "L", "CMYK", "RGB turned"):
        exif = Image.Exif()
        if name == "RGB turned":
            exif[0x0112] = 6
        written = io.BytesIO()
        drawn.convert(name.split()[0]).save(written, "JPEG", exif=exif)
        decoded = ImageOps.exif_transpose(Image.open(written)).convert("RGB")
        png = io.BytesIO()
        decoded.save(png, "PNG")
        made[name] = (_address(written.getvalue()), _address(png.getvalue()))
    return made


def _address(data: bytes) -> str:
    import base64

    return "data:;base64," + base64.b64encode(data).decode()


if __name__ == "__main__":
    sys.exit(main())
