"""MTP with --enable-unified-memory, one KV buffer for full and sliding layers, is refused. Needs no GPU."""

import sys
import tempfile
from pathlib import Path

import case  # type: ignore[import-not-found]
import engines  # type: ignore[import-not-found]


def main() -> int:
    """The tokens of greedy decoding, as transformers gives them without a draft and without a pool."""
    model = case.text_model()
    with tempfile.TemporaryDirectory() as folder:
        path = case.save(model, Path(folder) / "target")
        draft = case.save(case.assistant_model(), Path(folder) / "assistant", sglang_names=False)
        seen = case.generate(path, speculative_draft_model_path=draft, enable_unified_memory=True, **engines.MTP)
    return int(case.verdict(case.greedy(model), seen))


if __name__ == "__main__":
    sys.exit(main())
