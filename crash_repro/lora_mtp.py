"""LoRA with MTP is refused. Needs no GPU."""

import sys
import tempfile
from pathlib import Path

import adapted  # type: ignore[import-not-found]
import case  # type: ignore[import-not-found]
import shipped  # type: ignore[import-not-found]


def main() -> int:
    """The engine's tokens with an adapter beside one without, against transformers' with merged weights and no draft."""
    with tempfile.TemporaryDirectory() as folder:
        given = shipped.load(), shipped.target(), Path(folder)
        expected, seen = adapted.answers(*given, ["o_proj", "down_proj"], **shipped.mtp())
    return int(case.verdict(expected, seen))


if __name__ == "__main__":
    sys.exit(main())
