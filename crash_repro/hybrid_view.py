"""MTP where --prefill-attention-backend is not --decode-attention-backend: IndexError in the first draft. Needs no GPU.

On a card it happens sooner, while the draft's CUDA graph is captured. A machine without one has synchronous MTP only,
which stock SGLang cannot run (``sync_mtp.py``): for stock, that alone is repaired here.
"""

import sys
import tempfile
from pathlib import Path

import case  # type: ignore[import-not-found]
import engines  # type: ignore[import-not-found]

TOKENS = 4  # interpreted, a verify step takes two seconds, and the first draft is what crashes


def main() -> int:
    """The tokens of greedy decoding, as transformers gives them without a draft."""
    model = case.text_model()
    switches = engines.package_with("sync_mtp", "frozen_views") or engines.stock_but("sync_mtp")
    with tempfile.TemporaryDirectory() as folder:
        path = case.save(model, Path(folder) / "target")
        draft = case.save(case.assistant_model(), Path(folder) / "assistant", sglang_names=False)
        seen = case.generate(
            path,
            env={"TRITON_INTERPRET": "1", **switches},
            tokens=TOKENS,
            prefill_attention_backend="triton",
            decode_attention_backend="intel_amx",
            speculative_draft_model_path=draft,
            **engines.MTP,
        )
    return int(case.verdict(case.greedy(model, TOKENS), seen))


if __name__ == "__main__":
    sys.exit(main())
