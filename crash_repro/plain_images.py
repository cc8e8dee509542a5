"""A wide red image is answered from the features of a tall one that another client sent. Needs no GPU.

Features and prefixes are kept by a hash of an image's patches alone, and a wide and a tall image of one colour have the same patches.
"""

import sys
from typing import Any

import case  # type: ignore[import-not-found]
import engines  # type: ignore[import-not-found]
import shipped  # type: ignore[import-not-found]

PROMPT = "<bos>What colour is <|image|> and"


def main() -> int:
    """Log-probabilities of a wide image's answer, behind a tall one's and with nothing kept."""
    behind, alone = engines.ask(shipped.target("tiny-26b-a4b"), "plain_images:ask", skip_tokenizer_init=False, log_level="error")
    return int(case.verdict(alone, behind))


def ask(engine: Any, _extra: None) -> list[list[float]]:
    """The client."""
    wide, tall = (address(size) for size in ((96, 24), (24, 96)))
    engine.generate(prompt=PROMPT, image_data=tall, sampling_params={"max_new_tokens": 1})
    behind = logprobs(engine, wide)
    engine.flush_cache()
    engine.generate(prompt=PROMPT, image_data=wide, sampling_params={"max_new_tokens": 1})
    engine.flush_cache()
    return [behind, logprobs(engine, wide)]


def logprobs(engine: Any, image: str) -> list[float]:
    """Of four tokens."""
    sampling = {"max_new_tokens": 4, "temperature": 0, "ignore_eos": True}
    found = engine.generate(prompt=PROMPT, image_data=image, sampling_params=sampling, return_logprob=True)
    return [round(entry[0], 2) for entry in found["meta_info"]["output_token_logprobs"]]


def address(size: tuple[int, int]) -> str:
    """A red image, as a data: address."""
    import base64
    import io

    from PIL import Image

    written = io.BytesIO()
    Image.new("RGB", size, "red").save(written, "PNG")
    return "data:image/png;base64," + base64.b64encode(written.getvalue()).decode()


if __name__ == "__main__":
    sys.exit(main())
