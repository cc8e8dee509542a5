"""Patches that only fill an image up to its budget are pooled into its first soft token. Needs no GPU."""

import sys
import tempfile
from pathlib import Path

import case  # type: ignore[import-not-found]
import engines  # type: ignore[import-not-found]
import shipped  # type: ignore[import-not-found]

CLOSE = 1e-4
"""Of a log-probability in float32, between SGLang and transformers."""


def main() -> int:
    """The log-probability of the first token after an image, against transformers'."""
    with tempfile.TemporaryDirectory() as folder:
        picture = shipped.draw(Path(folder))
        (expected,) = shipped.image_logprobs("tiny-e2b", shipped.IMAGE_TEXT, [picture])
        seen = engines.ask(
            shipped.target(),
            "shipped:ask_about_images",
            {"text": shipped.IMAGE_TEXT, "images": [str(picture)]},
            # The batched tower packs images without their padding, which hides what the pooler does with it.
            env=engines.package_with("SGLANG_GEMMA4_IMAGE_PADDING"),
            skip_tokenizer_init=False,
        )
    print(f"log-probability by transformers: {expected}")
    right = isinstance(seen, list) and abs(seen[0] - expected) <= CLOSE
    return int(case.verdict("transformers' log-probability", "transformers' log-probability" if right else seen))


if __name__ == "__main__":
    sys.exit(main())
