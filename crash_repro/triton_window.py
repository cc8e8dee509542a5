"""Triton decode attends to one key less than the sliding window. Needs no GPU: Triton's interpreter, float32."""

import sys
import tempfile
from pathlib import Path

import case  # type: ignore[import-not-found]


def main() -> int:
    """Greedy tokens past the window against transformers'."""
    model = case.text_model("tiny-e2b")
    with tempfile.TemporaryDirectory() as folder:
        path = case.save(model, Path(folder))
        seen = case.generate(path, env={"TRITON_INTERPRET": "1"}, attention_backend="triton")
    return int(case.verdict(case.greedy(model), seen))


if __name__ == "__main__":
    sys.exit(main())
