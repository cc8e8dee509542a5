"""MTP with the assistant named and nothing else ends the start with a TypeError. Needs no GPU.

SGLang has defaults of steps, candidates and draft tokens for its other algorithms, for MTP none.
"""

import sys

import case  # type: ignore[import-not-found]
import engines  # type: ignore[import-not-found]
import shipped  # type: ignore[import-not-found]

TOKENS = 12


def main() -> int:
    """Greedy answers against transformers'."""
    extra = {"prompts": shipped.questions(2, 8), "tokens": TOKENS, "updated": None}
    flags = {"speculative_algorithm": "NEXTN", "speculative_draft_model_path": f"{shipped.target()}-assistant"}
    seen = engines.ask(shipped.target(), "case:continue_prompts", extra, **flags)
    return int(case.verdict(shipped.greedy(shipped.load(), extra["prompts"], TOKENS), seen))


if __name__ == "__main__":
    sys.exit(main())
