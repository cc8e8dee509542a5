"""Under MTP the second turn of a streaming session is wrong: its first turn's last token counts as cached, and no step wrote its KV.

A machine without a GPU has synchronous MTP only, which stock SGLang cannot run (``sync_mtp.py``): for stock, that alone is repaired here.
"""

import sys
from typing import Any

import case  # type: ignore[import-not-found]
import engines  # type: ignore[import-not-found]
import shipped  # type: ignore[import-not-found]

SESSIONS, TURNS, TOKENS = 8, 4, 7
"""Answers of seven tokens end in the middle of a sentence, and at all places of a verify step."""
SAID = [300, 350, 360]
"""What the user says in each further turn."""


def main() -> int:
    """Each turn is what one request with all that was said before it is answered."""
    options = {**shipped.mtp(), "enable_streaming_session": True}
    prompts = shipped.questions(SESSIONS, seed=4)
    turns = engines.ask(shipped.target(), "session_turns:turns", prompts, env=engines.stock_but(shipped.SYNC_MTP), **options)
    if not isinstance(turns, list):
        return int(case.verdict("answers", turns))
    model, wrong = shipped.load(), []
    for number, (prompt, answers) in enumerate(zip(prompts, turns, strict=True)):
        for turn, answer in enumerate(answers):
            [due] = shipped.greedy(model, [prompt], TOKENS)
            wrong += [f"turn {turn} of session {number}"] if answer != due else []
            prompt = prompt + answer + SAID
    return int(case.verdict([], wrong))


def turns(engine: Any, prompts: list[list[int]]) -> list[list[list[int]]]:
    """The client: each session's answers."""
    sampling = {"max_new_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
    found: list[list[list[int]]] = []
    for prompt in prompts:
        name = engine.open_session(capacity_of_str_len=10_000, streaming=True)
        asked = [prompt, *[SAID] * (TURNS - 1)]
        found.append([engine.generate(input_ids=say, sampling_params=sampling, session_params={"id": name})["output_ids"] for say in asked])
        engine.close_session(name)
    return found


if __name__ == "__main__":
    sys.exit(main())
