"""A quantised checkpoint's vision tower, which its ``ignore`` names, becomes quantised layers that find no weights. Needs no GPU.

The checkpoint calls them ``…self_attn.q_proj.linear``, SGLang ``…self_attn.qkv_proj``.
"""

import sys
import tempfile
from pathlib import Path

import case  # type: ignore[import-not-found]
import dequantised  # type: ignore[import-not-found]
import engines  # type: ignore[import-not-found]
import quantised  # type: ignore[import-not-found]
import shipped  # type: ignore[import-not-found]

CLOSE = 1e-4
"""Of a log-probability in float32, between SGLang and transformers."""
OTHERS = ("router_scale", "image_padding", "batched_vision", "image_masks")
"""Failures of their own that would hide this one."""


def main() -> int:
    """The log-probability of the first token after an image, against transformers' with the same weights in float32."""
    switches = engines.stock_but(*OTHERS)
    with tempfile.TemporaryDirectory() as folder:
        model = quantised.write(Path(folder) / "model")
        picture = shipped.draw(Path(folder))
        asked = {"text": shipped.IMAGE_TEXT, "images": [str(picture)]}
        (expected,) = shipped.image_logprobs(dequantised.write(model, Path(folder) / "float32"), shipped.IMAGE_TEXT, [picture])
        seen = engines.ask(model, "shipped:ask_about_images", asked, env=switches, skip_tokenizer_init=False)
    right = isinstance(seen, list) and abs(seen[0] - expected) <= CLOSE
    print(f"log-probability by transformers: {expected}")
    return int(case.verdict("transformers' log-probability", "transformers' log-probability" if right else seen))


if __name__ == "__main__":
    sys.exit(main())
