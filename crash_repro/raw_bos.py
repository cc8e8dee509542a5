"""Raw texts at a tokenizer like the released ones, which adds no <bos>: they are scored without the one that Gemma needs. Needs no GPU."""

import sys
from typing import Any

import case  # type: ignore[import-not-found]
import engines  # type: ignore[import-not-found]
import shipped  # type: ignore[import-not-found]

TEXT = "The ruler of Arvo is"
BOS = 2


def main() -> int:
    """What a text, the same with <bos> written in front, and its token ids begin with, and how many tokens each counts."""
    ids = [BOS, *_encoded(TEXT)]
    seen = engines.ask(shipped.target(), "raw_bos:scored", {"texts": [TEXT, f"<bos>{TEXT}"], "ids": ids}, skip_tokenizer_init=False)
    return int(case.verdict([[ids, len(ids)]] * 3, seen))


def _encoded(text: str) -> list[int]:
    from sglang_gemma4.tiny import tokenizer

    ids: list[int] = tokenizer.load_raw(shipped.target()).encode(text, add_special_tokens=False).ids
    return ids


def scored(engine: Any, extra: Any) -> list[Any]:
    """The client: scored tokens and prompt tokens of each prompt."""
    options = {"sampling_params": {"max_new_tokens": 1}, "return_logprob": True, "logprob_start_len": 0}
    found = [engine.generate(text, **options) for text in extra["texts"]] + [engine.generate(input_ids=extra["ids"], **options)]
    about = [one["meta_info"] for one in found]
    return [[[token for _, token, _ in one["input_token_logprobs"]], one["prompt_tokens"]] for one in about]


if __name__ == "__main__":
    sys.exit(main())
