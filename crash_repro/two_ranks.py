"""One model over two ranks of a CPU, over gloo: what the scripts about pipeline stages and data-parallel attention start."""

from typing import Any

import case  # type: ignore[import-not-found]
import engines  # type: ignore[import-not-found]
import shipped  # type: ignore[import-not-found]

REFUSED = "PreflightError: "
TOKENS = 12
CORES = {"SGLANG_CPU_OMP_THREADS_BIND": "0|1"}


def verdict(family: str, refusal: str = "", **engine: Any) -> int:
    """Greedy answers of two requests against transformers'; the exit status.

    Args:
        refusal: how the line begins that stands for an answer too; none does where this is empty.
    """
    extra = {"prompts": shipped.questions(2, 8), "tokens": TOKENS, "updated": None}
    ranks = "tests.harness.instruments.gloo_ranks:install"
    seen = engines.ask(shipped.target(family), "case:continue_prompts", extra, CORES, prepare=ranks, **engine)
    if refusal and isinstance(seen, str) and f"{REFUSED}{refusal}" in seen:
        print(f"saw:      {seen}\nrefused before weights are loaded")
        return 0
    return int(case.verdict(shipped.greedy(shipped.load(family), extra["prompts"], TOKENS), seen))
