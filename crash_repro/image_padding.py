"""Patches that only fill an image up to its budget are pooled into its first soft token. Needs no GPU."""

import sys
import tempfile
from pathlib import Path

import case  # type: ignore[import-not-found]
import engines  # type: ignore[import-not-found]
import shipped  # type: ignore[import-not-found]

CLOSE = 1e-4
"""Of a log-probability in float32, between SGLang and transformers."""
ROUTER = "router_scale"
"""A failure of its own (``router_scale.py``) that would hide this one on a model with experts."""


def main() -> int:
    """The log-probability of the first token after an image, against transformers'."""
    # The batched tower packs images without their padding, which hides what the pooler does with it.
    switches = engines.package_with("image_padding", ROUTER) or engines.stock_but(ROUTER)
    status = 0
    with tempfile.TemporaryDirectory() as folder:
        picture = shipped.draw(Path(folder))
        asked = {"text": shipped.IMAGE_TEXT, "images": [str(picture)]}
        for family in ("tiny-e2b", "tiny-26b-a4b"):
            (expected,) = shipped.image_logprobs(family, shipped.IMAGE_TEXT, [picture])
            seen = engines.ask(shipped.target(family), "shipped:ask_about_images", asked, env=switches, skip_tokenizer_init=False)
            print(f"--- {family}; log-probability by transformers: {expected}")
            right = isinstance(seen, list) and abs(seen[0] - expected) <= CLOSE
            status |= case.verdict("transformers' log-probability", "transformers' log-probability" if right else seen)
    return status


if __name__ == "__main__":
    sys.exit(main())
