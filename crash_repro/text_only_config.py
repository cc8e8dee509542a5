"""Text-only checkpoints saved by transformers do not load. Needs no GPU."""

import sys
import tempfile
from pathlib import Path

import case  # type: ignore[import-not-found]


def main() -> int:
    """Dense, E2B-like and MoE: the engine's greedy tokens against transformers'."""
    status = 0
    for family in ("tiny-31b", "tiny-e2b", "tiny-26b-a4b"):
        print(f"--- {family}")
        with tempfile.TemporaryDirectory() as folder:
            model = case.text_model(family)
            path = case.save(model, Path(folder), sglang_names=False)
            status |= case.verdict(case.greedy(model), case.generate(path))
    return status


if __name__ == "__main__":
    sys.exit(main())
