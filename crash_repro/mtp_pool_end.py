"""Under MTP an answer that reaches the end of the KV pool is lost, with status 500; plain decoding ends it with ``length``. Needs no GPU.

The pool holds 400 tokens. A machine without a GPU has synchronous MTP only, which stock SGLang cannot run (``sync_mtp.py``): for stock,
that alone is repaired here.
"""

import sys
from typing import Any

import case  # type: ignore[import-not-found]
import engines  # type: ignore[import-not-found]
import shipped  # type: ignore[import-not-found]

POOL, PROMPTS = 400, (300, 370)
ASKED, SPARED = 200, 8
"""Tokens of answer: more than the pool has beside either prompt; and what a verify step has beyond its own."""


def main() -> int:
    """Plain decoding and MTP: each answer ends with ``length``, and the tokens of MTP's are those that plain decoding begins with."""
    options = {"max_total_tokens": POOL}
    plain = engines.ask(shipped.target(), "mtp_pool_end:answers", **options)
    drafted = engines.ask(shipped.target(), "mtp_pool_end:answers", env=engines.stock_but(shipped.SYNC_MTP), **options, **shipped.mtp())
    if not isinstance(plain, list) or not isinstance(drafted, list):
        return int(case.verdict("answers", (plain, drafted)))
    print(f"plain decoding in a pool of {POOL} tokens: {_told(plain)}")
    print(f"expected: MTP's answers end with length too, and begin as plain decoding's\nsaw:      {_told(drafted)}")
    right = all(
        reason == "length" and len(tokens) > SPARED and tokens == whole[: len(tokens)]
        for (reason, tokens), (_, whole) in zip(drafted, plain, strict=True)
    )
    print("as expected" if right else "WRONG")
    return int(not right)


def _told(answers: list[Any]) -> list[str]:
    return [f"{length} and {len(found[1])} tokens: {found[0]}" for length, found in zip(PROMPTS, answers, strict=True)]


def answers(engine: Any, _extra: None) -> list[Any]:
    """The client: how each answer ended, and its tokens."""
    sampling = {"max_new_tokens": ASKED, "temperature": 0, "ignore_eos": True}
    found = []
    for length in PROMPTS:
        prompt = [2, *((7 * place) % 700 + 300 for place in range(length - 1))]
        try:
            output = engine.generate(input_ids=prompt, sampling_params=sampling)
        except Exception as error:  # an engine raises what a server answers with a status
            found.append([str(error), []])
        else:
            reason = output["meta_info"]["finish_reason"]
            found.append([reason.get("message") or reason["type"], output["output_ids"]])
    return found


if __name__ == "__main__":
    sys.exit(main())
