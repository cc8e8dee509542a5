"""Phones save a picture as the sensor has it, and its EXIF tag says how to turn it: stock answers about the turned one. Needs no GPU.

transformers' load_image, and every viewer, turns it.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import case  # type: ignore[import-not-found]
import engines  # type: ignore[import-not-found]
import shipped  # type: ignore[import-not-found]

PROMPT = "<bos>Where does <|image|> live with"
TAGS = range(1, 9)


def main() -> int:
    """Tokens of each of eight files of one picture, and whether they are answered as the picture itself is."""
    with TemporaryDirectory() as folder:
        seen = engines.ask(shipped.target(), "turned_images:ask", list(map(str, write(Path(folder)))), skip_tokenizer_init=False)
    return int(case.verdict(["as the picture itself"] * len(TAGS), seen))


def write(folder: Path) -> list[Path]:
    """A picture, and the eight files that stand for it, each stored turned the other way."""
    from PIL import Image, ImageOps

    from sglang_gemma4.tiny import images

    picture = images.draw(1, "blue").resize((200, 60))
    picture.paste("yellow", (0, 0, 90, 20))
    picture.save(folder / "picture.png")
    for tag in TAGS:
        exif = Image.Exif()
        exif[0x0112] = {6: 8, 8: 6}.get(tag, tag)  # the turn back
        stored = ImageOps.exif_transpose(_with(picture, exif))
        exif[0x0112] = tag
        stored.save(folder / f"{tag}.png", exif=exif)
    return [folder / "picture.png", *(folder / f"{tag}.png" for tag in TAGS)]


def _with(picture: Any, exif: Any) -> Any:
    tagged = picture.copy()
    tagged.info["exif"] = exif.tobytes()
    return tagged


def ask(engine: Any, paths: list[str]) -> list[str]:
    """The client."""
    asked, *found = [look(engine, path) for path in paths]
    return ["as the picture itself" if one == asked else f"{one} for {asked}" for one in found]


def look(engine: Any, path: str) -> list[float]:
    """How many tokens an image makes, and the log-probability of the answer's first token."""
    sampling = {"max_new_tokens": 1, "temperature": 0, "ignore_eos": True}
    found = engine.generate(prompt=PROMPT, image_data=[path], sampling_params=sampling, return_logprob=True)["meta_info"]
    return [found["prompt_tokens"], round(found["output_token_logprobs"][0][0], 2)]


if __name__ == "__main__":
    sys.exit(main())
