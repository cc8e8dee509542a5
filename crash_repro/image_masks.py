"""Images on triton attend both ways where the config says causally, and the other way round. Needs no GPU: Triton's interpreter.

tiny-e2b's images are causal, as E2B's and E4B's; stock masks them both ways. tiny-26b-a4b's attend both ways on sliding layers, as those of
26B-A4B and 31B; stock cuts an image by prefill chunks, and what a chunk does not hold is not attended to.
"""

import sys
import tempfile
from pathlib import Path

import case  # type: ignore[import-not-found]
import engines  # type: ignore[import-not-found]
import shipped  # type: ignore[import-not-found]

CLOSE = 1e-4
"""Of a log-probability in float32, between SGLang and transformers."""
TEXT = "<bos>The ruler of the land went along the river to the town and came back. What is this <|image|> called?"
KEPT = ("image_padding", "router_scale")
"""Failures of their own (``image_padding.py``, ``router_scale.py``) that would hide this one."""


def main() -> int:
    """The log-probability of the first token after an image, against transformers'."""
    switches = engines.package_with("image_masks", *KEPT) or engines.stock_but(*KEPT)
    status = 0
    with tempfile.TemporaryDirectory() as folder:
        picture = shipped.draw(Path(folder))
        for family, chunk in (("tiny-e2b", 2048), ("tiny-26b-a4b", 48)):
            (expected,) = shipped.image_logprobs(family, TEXT, [picture])
            seen = engines.ask(
                shipped.target(family),
                "shipped:ask_about_images",
                {"text": TEXT, "images": [str(picture)]},
                env={"TRITON_INTERPRET": "1", **switches},
                skip_tokenizer_init=False,
                attention_backend="triton",
                chunked_prefill_size=chunk,
            )
            print(f"--- {family}, chunks of {chunk} tokens; log-probability by transformers: {expected}")
            right = isinstance(seen, list) and abs(seen[0] - expected) <= CLOSE
            status |= case.verdict("transformers' log-probability", "transformers' log-probability" if right else seen)
    return status


if __name__ == "__main__":
    sys.exit(main())
