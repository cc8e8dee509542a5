"""Under MTP a penalty counts one token a verify step, and min_new_tokens counts steps. Needs no GPU.

A machine without a GPU has synchronous MTP only, which stock SGLang cannot run (``sync_mtp.py``): for stock, that alone is repaired here.
"""

import sys
from typing import Any

import case  # type: ignore[import-not-found]
import engines  # type: ignore[import-not-found]
import shipped  # type: ignore[import-not-found]

TOKENS, LEAST, FREQUENCY = 24, 8, 1.5
SAMPLING: dict[str, dict[str, Any]] = {
    f"frequency_penalty {FREQUENCY}": {"frequency_penalty": FREQUENCY, "ignore_eos": True},
    f"min_new_tokens {LEAST}": {"min_new_tokens": LEAST},
}


def main() -> int:
    """Answers to one question each, against transformers' with the same arithmetic token by token."""
    _, second, first = shipped.questions(3, 3)
    prompts = [first, second]  # answers that repeat words, and that end at the seventh token where they may
    seen = engines.ask(shipped.target(), "verify_penalties:answers", prompts, env=engines.stock_but(shipped.SYNC_MTP), **ENGINE)
    model = shipped.load()
    ends = model.generation_config.eos_token_id

    def frequency(scores: Any, answer: list[int]) -> None:
        for token in answer:
            scores[token] -= FREQUENCY

    def least(scores: Any, answer: list[int]) -> None:
        if len(answer) < LEAST:
            scores[ends] = float("-inf")

    ((repeats,), (ends_late,)) = (
        shipped.greedy(model, [prompt], TOKENS, how) for prompt, how in zip(prompts, (frequency, least), strict=True)
    )
    end = next((place for place, token in enumerate(ends_late) if token in ends), TOKENS)
    return int(case.verdict(dict(zip(SAMPLING, (repeats, ends_late[: end + 1]), strict=True)), seen))


def answers(engine: Any, prompts: list[list[int]]) -> dict[str, list[int]]:
    """The client."""
    sampling = [{"temperature": 0, "max_new_tokens": TOKENS, **one} for one in SAMPLING.values()]
    return dict(zip(SAMPLING, (found["output_ids"] for found in engine.generate(input_ids=prompts, sampling_params=sampling)), strict=True))


ENGINE = {**shipped.mtp(), "skip_tokenizer_init": False}

if __name__ == "__main__":
    sys.exit(main())
