"""An image is answered from another one's features and KV, another client's too, where both have the same patches. Needs no GPU.

SGLang keys both caches by a hash of an image's patches. A wide and a tall image of one colour differ in their patches' positions alone.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import case  # type: ignore[import-not-found]
import engines  # type: ignore[import-not-found]
import shipped  # type: ignore[import-not-found]

PROMPT = "<bos>Where does <|image|> live with"
SIZES = ((96, 48), (48, 96))


def main() -> int:
    """By how much the log-probability of a tall image's answer differs from that of the wide one asked about before it."""
    from PIL import Image

    with TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{width}.png" for width, _ in SIZES]
        for path, size in zip(paths, SIZES, strict=True):
            Image.new("RGB", size, "purple").save(path)
        expected = difference([shipped.image_logprobs("tiny-e2b", PROMPT, [path]) for path in paths])
        seen = engines.ask(shipped.target(), "plain_images:ask", list(map(str, paths)), skip_tokenizer_init=False)
    return int(case.verdict(expected, seen))


def ask(engine: Any, paths: list[str]) -> float:
    """The client."""
    return difference([shipped.ask_about_images(engine, {"text": PROMPT, "images": [path]}) for path in paths])


def difference(logprobs: list[list[float]]) -> float:
    """Of the second first token's from the first one's."""
    return round(logprobs[1][0] - logprobs[0][0], 2)


if __name__ == "__main__":
    sys.exit(main())
