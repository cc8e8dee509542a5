"""Under MTP the second turn of a streaming session is wrong: its first turn's last token counts as cached, and no step wrote its KV.

A machine without a GPU has synchronous MTP only, which stock SGLang cannot run (``sync_mtp.py``): for stock, that alone is repaired here.
"""

import sys
from typing import Any

import case  # type: ignore[import-not-found]
import engines  # type: ignore[import-not-found]
import shipped  # type: ignore[import-not-found]

FIRST = [(7 * place) % 700 + 300 for place in range(40)]
SAID = ([9, 350], [360, 11, 350, 420], [500])
"""What the user says in each further turn."""
TOKENS = (9, 10, 11, 12)


def main() -> int:
    """Four turns: each is what one request with all that was said before it is answered."""
    options = {**shipped.mtp(), "enable_streaming_session": True}
    turns = engines.ask(shipped.target(), "session_turns:turns", env=engines.stock_but(shipped.SYNC_MTP), **options)
    if not isinstance(turns, list):
        return int(case.verdict("answers", turns))
    prompts, history = [], [2, *FIRST]
    for answer, added in zip(turns, [*SAID, []], strict=True):
        prompts.append(history)
        history = history + answer + added
    whole = shipped.load()
    due = [shipped.greedy(whole, [prompt], tokens)[0] for prompt, tokens in zip(prompts, TOKENS, strict=True)]
    return int(case.verdict(due, turns))


def turns(engine: Any, _extra: None) -> list[list[int]]:
    """The client: one session's answers."""
    name = engine.open_session(capacity_of_str_len=10_000, streaming=True)
    found = []
    for say, tokens in zip(([2, *FIRST], *SAID), TOKENS, strict=True):
        sampling = {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True}
        found.append(engine.generate(input_ids=say, sampling_params=sampling, session_params={"id": name})["output_ids"])
    engine.close_session(name)
    return found


if __name__ == "__main__":
    sys.exit(main())
