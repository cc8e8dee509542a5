"""Pages of 64 tokens and a pool below the context: prompts near its end get no answer, or wait for ever and all others with them.

The pool holds 1,024 tokens. Needs no GPU.
"""

import asyncio
import sys
from typing import Any

import case  # type: ignore[import-not-found]
import engines  # type: ignore[import-not-found]
import shipped  # type: ignore[import-not-found]

POOL, PAGE, CHUNK, LIMIT = 1024, 64, 256, 15.0
"""Tokens of the pool, of a page and of a prefill chunk; seconds without an answer that count as for ever."""
TOGETHER = ((900,), (940,), (1000, 20))
"""Prompts, in tokens; those of one pair are sent together."""
TOKENS = 8


def main() -> int:
    """Every prompt is answered with tokens, or refused with a message that names the pool's limit."""
    options = {"page_size": PAGE, "max_total_tokens": POOL, "chunked_prefill_size": CHUNK}
    seen = engines.ask(shipped.target(), "page_pool:answers", **options)
    if not isinstance(seen, dict):
        return int(case.verdict("answers", seen))
    print(f"a pool of {POOL} tokens, pages of {PAGE}, {TOKENS} tokens asked for; by the prompt's tokens:")
    expected = {name: said if said.startswith("refused") else f"{TOKENS} tokens" for name, said in seen.items()}
    return int(case.verdict(expected, seen))


def answers(engine: Any, _extra: None) -> dict[str, str]:
    """The client: what becomes of each prompt."""
    engine.generate(input_ids=[2, 300], sampling_params={"max_new_tokens": 2})  # what comes first is slow
    return {name: said for lengths in TOGETHER for name, said in engine.loop.run_until_complete(_ask(engine, lengths)).items()}


async def _ask(engine: Any, lengths: tuple[int, ...]) -> dict[str, str]:
    return dict(zip(map(str, lengths), await asyncio.gather(*(_one(engine, length) for length in lengths)), strict=True))


async def _one(engine: Any, length: int) -> str:
    prompt = [2, *((7 * place) % 700 + 300 for place in range(length - 1))]
    sampling = {"max_new_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
    try:
        output = await asyncio.wait_for(engine.async_generate(input_ids=prompt, sampling_params=sampling, rid=f"of-{length}"), LIMIT)
    except TimeoutError:
        engine.tokenizer_manager.abort_request(f"of-{length}")
        return f"no answer within {LIMIT:.0f} s"
    except Exception as error:  # an engine raises what a server answers with status 400
        return f"refused: {error}" if "at most" in str(error) else f"{type(error).__name__}: {error}"
    return f"{len(output['output_ids'])} tokens"


if __name__ == "__main__":
    sys.exit(main())
