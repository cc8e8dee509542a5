"""Under MTP a sampled request's min_p is ignored, and its top_p is judged by what top_k left. Needs no GPU.

Two requests whose answers plain sampling bounds: min_p 1 leaves the most likely token alone, so the answer is the greedy one; top_p,
judged by the whole softmax as ``layers/sampler.py`` does, leaves two tokens at this temperature, judged behind top_k 2 one, so the answer
is not.
A machine without a GPU has synchronous MTP only, which stock SGLang cannot run (``sync_mtp.py``): for stock, that alone is repaired here.
The CPU engine samples along the draft as SGLang's CUDA kernel does.
"""

import sys
from typing import Any

import case  # type: ignore[import-not-found]
import engines  # type: ignore[import-not-found]
import shipped  # type: ignore[import-not-found]

TOKENS = 24
SAMPLING = {"min_p": {"temperature": 2.0, "min_p": 1.0}, "top_k and top_p": {"temperature": 50.0, "top_k": 2, "top_p": 0.4}}


def main() -> int:
    """Which of the two answers are greedy decoding's."""
    (prompt,) = shipped.questions(1, 8)
    options = {**shipped.mtp(), "skip_tokenizer_init": False}
    seen = engines.ask(shipped.target(), "verify_cuts:answers", prompt, env=engines.stock_but(shipped.SYNC_MTP), **options)
    (greedy,) = shipped.greedy(shipped.load(), [prompt], TOKENS)
    if isinstance(seen, dict):
        print(f"greedy: {greedy}\nanswers: {seen}")
        seen = {name: "greedy" if answer == greedy else "not greedy" for name, answer in seen.items()}
    return int(case.verdict({"min_p": "greedy", "top_k and top_p": "not greedy"}, seen))


def answers(engine: Any, prompt: list[int]) -> dict[str, list[int]]:
    """The client."""
    sampling = [{"max_new_tokens": TOKENS, "ignore_eos": True, **one} for one in SAMPLING.values()]
    found = engine.generate(input_ids=[prompt] * len(SAMPLING), sampling_params=sampling)
    return dict(zip(SAMPLING, (one["output_ids"] for one in found), strict=True))


if __name__ == "__main__":
    sys.exit(main())
