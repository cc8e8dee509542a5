"""The MoE router ignores its scale on the native path, and keeps the first one after a weight update. Needs no GPU."""

import sys
import tempfile
from pathlib import Path

import case  # type: ignore[import-not-found]


def main() -> int:
    """Greedy tokens before and after ``update_weights_from_disk`` against transformers' with either checkpoint."""
    models = [case.text_model("tiny-26b-a4b", seed) for seed in (0, 1)]
    with tempfile.TemporaryDirectory() as folder:
        first, second = (case.save(model, Path(folder) / str(n)) for n, model in enumerate(models))
        seen = case.generate(first, updated=second)
    return int(case.verdict([case.greedy(model) for model in models], seen))


if __name__ == "__main__":
    sys.exit(main())
