"""MTP with --disable-overlap-schedule ends at the first batch. Needs no GPU."""

import sys
import tempfile
from pathlib import Path

import case  # type: ignore[import-not-found]
import engines  # type: ignore[import-not-found]


def main() -> int:
    """The tokens of greedy decoding, as transformers gives them without a draft."""
    model = case.text_model()
    with tempfile.TemporaryDirectory() as folder:
        path = case.save(model, Path(folder) / "target")
        draft = case.save(case.assistant_model(), Path(folder) / "assistant", sglang_names=False)
        seen = case.generate(path, speculative_draft_model_path=draft, **engines.MTP)
    return int(case.verdict(case.greedy(model), seen))


if __name__ == "__main__":
    sys.exit(main())
