"""Triton decode attends to one key less than the sliding window. Needs no GPU: Triton's interpreter, float32.

The package has its one switch on: with its kernels, each interpreted, it would take minutes.
"""

import sys
import tempfile
from pathlib import Path

import case  # type: ignore[import-not-found]
import engines  # type: ignore[import-not-found]

TOKENS = 4


def main() -> int:
    """Greedy tokens past the window against transformers'."""
    model = case.text_model("tiny-e2b")
    env = {"TRITON_INTERPRET": "1", **engines.package_with("triton_window")}
    with tempfile.TemporaryDirectory() as folder:
        seen = case.generate(case.save(model, Path(folder)), env=env, tokens=TOKENS, attention_backend="triton")
    return int(case.verdict(case.greedy(model, TOKENS), seen))


if __name__ == "__main__":
    sys.exit(main())
