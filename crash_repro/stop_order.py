"""Under MTP an answer runs past its first stop where one verify step accepts a later stop too. Needs no GPU.

A machine without a GPU has synchronous MTP only, which stock SGLang cannot run (``sync_mtp.py``): for stock, that alone is repaired here.
"""

import sys
from typing import Any

import case  # type: ignore[import-not-found]
import engines  # type: ignore[import-not-found]
import shipped  # type: ignore[import-not-found]

TOKENS, CUTS = 28, range(2, 8)


def main() -> int:
    """Answers to one question, each with two stop strings from the whole answer, the later one named first."""
    prompts = shipped.questions(1, 3)
    options = {**shipped.mtp(), "skip_tokenizer_init": False}
    seen = engines.ask(shipped.target(), "stop_order:answers", prompts, env=engines.stock_but(shipped.SYNC_MTP), **options)
    if not isinstance(seen, list):
        return int(case.verdict("answers", seen))
    whole, asked, texts = seen
    print(f"the whole answer: {whole!r}; stops: {asked}")
    return int(case.verdict([whole[: min(whole.find(stop) for stop in stops)] for stops in asked], texts))


def answers(engine: Any, prompts: list[list[int]]) -> list[Any]:
    """The client: the whole answer, the stops asked for, and the answers with them."""
    sampling = {"temperature": 0, "max_new_tokens": TOKENS}
    (whole,) = engine.generate(input_ids=prompts, sampling_params={**sampling, "ignore_eos": True})
    decode = engine.tokenizer_manager.tokenizer.decode
    asked = []
    for cut in CUTS:
        first, last = (decode(whole["output_ids"][start : start + 2]) for start in (cut, cut + 1))
        if 0 <= whole["text"].find(first) < whole["text"].find(last):
            asked.append([last, first])
    found = engine.generate(input_ids=prompts * len(asked), sampling_params=[{**sampling, "stop": stops} for stops in asked])
    return [whole["text"], asked, [one["text"] for one in found]]


if __name__ == "__main__":
    sys.exit(main())
