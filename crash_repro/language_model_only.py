"""--language-model-only is refused for Gemma 4, whose towers then take their memory for nothing. Needs no GPU."""

import sys

import case  # type: ignore[import-not-found]
import engines  # type: ignore[import-not-found]
import shipped  # type: ignore[import-not-found]

TOKENS = 12


def main() -> int:
    """Greedy answers of a server without towers against transformers'."""
    extra = {"prompts": shipped.questions(2, 8), "tokens": TOKENS, "updated": None}
    seen = engines.ask(shipped.target(), "case:continue_prompts", extra, language_model_only=True)
    return int(case.verdict(shipped.greedy(shipped.load(), extra["prompts"], TOKENS), seen))


if __name__ == "__main__":
    sys.exit(main())
