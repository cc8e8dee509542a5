"""MTP where --prefill-attention-backend is not --decode-attention-backend: IndexError in the first draft. Needs no GPU.

On a card it happens sooner, while the draft's CUDA graph is captured. A machine without one has synchronous MTP only,
which stock SGLang cannot run (``sync_mtp.py``): there this reports that first.
"""

import sys
import tempfile
from pathlib import Path

import case  # type: ignore[import-not-found]

TOKENS = 8  # interpreted, a verify step takes two seconds, and the first draft is what crashes


def main() -> int:
    """The tokens of greedy decoding, as transformers gives them without a draft."""
    model = case.text_model()
    with tempfile.TemporaryDirectory() as folder:
        path = case.save(model, Path(folder) / "target")
        draft = case.save(case.assistant_model(), Path(folder) / "assistant", sglang_names=False)
        seen = case.generate(
            path,
            env={"TRITON_INTERPRET": "1"},
            tokens=TOKENS,
            prefill_attention_backend="triton",
            decode_attention_backend="intel_amx",
            disable_overlap_schedule=True,
            speculative_algorithm="NEXTN",
            speculative_draft_model_path=draft,
            speculative_num_steps=3,
            speculative_num_draft_tokens=4,
            speculative_eagle_topk=1,
        )
    return int(case.verdict(case.greedy(model, TOKENS), seen))


if __name__ == "__main__":
    sys.exit(main())
