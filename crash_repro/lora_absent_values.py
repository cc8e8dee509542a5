"""A LoRA adapter of attention does not load where a layer has no v_proj: it shares KV (E2B), or its values are its keys. Needs no GPU."""

import sys
import tempfile
from pathlib import Path

import adapted  # type: ignore[import-not-found]
import case  # type: ignore[import-not-found]
import shipped  # type: ignore[import-not-found]

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")


def main() -> int:
    """The engine's tokens with an adapter beside one without, against transformers' with merged weights."""
    status = 0
    for family in ("tiny-e2b", "tiny-31b"):
        print(f"--- {family}")
        with tempfile.TemporaryDirectory() as folder:
            expected, seen = adapted.answers(shipped.load(family), shipped.target(family), Path(folder), ATTENTION)
        status |= case.verdict(expected, seen)
    return status


if __name__ == "__main__":
    sys.exit(main())
