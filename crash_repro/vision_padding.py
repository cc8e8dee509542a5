"""The vision tower attends to an image's padding patches, on every backend that a card has. Needs no GPU: Triton's interpreter.

``triton_attn`` and ``fa3``, of which SGLang takes one on a card, drop the mask that the tower gives them; torch's attention, which a CPU
has, heeds it.
"""

import sys
import tempfile
from pathlib import Path

import case  # type: ignore[import-not-found]
import engines  # type: ignore[import-not-found]
import shipped  # type: ignore[import-not-found]

CLOSE = 1e-4
"""Of a log-probability in float32, between SGLang and transformers."""
POOLING = "image_padding"
"""A failure of its own (``image_padding.py``) that would hide this one."""


def main() -> int:
    """The log-probability of the first token after an image, against transformers'."""
    with tempfile.TemporaryDirectory() as folder:
        picture = shipped.draw(Path(folder))
        (expected,) = shipped.image_logprobs("tiny-e2b", shipped.IMAGE_TEXT, [picture])
        switches = engines.package_with("batched_vision", POOLING) or engines.stock_but(POOLING)
        seen = engines.ask(
            shipped.target(),
            "shipped:ask_about_images",
            {"text": shipped.IMAGE_TEXT, "images": [str(picture)]},
            env={"TRITON_INTERPRET": "1", **switches},
            skip_tokenizer_init=False,
            mm_attention_backend="triton_attn",
        )
    print(f"log-probability by transformers: {expected}")
    right = isinstance(seen, list) and abs(seen[0] - expected) <= CLOSE
    return int(case.verdict("transformers' log-probability", "transformers' log-probability" if right else seen))


if __name__ == "__main__":
    sys.exit(main())
