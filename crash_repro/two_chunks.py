"""Two prompts are cut in one batch; SGLang forgets the rest of the first and answers from its first tokens. Needs no GPU.

--enable-mixed-chunk takes a running request's token from the chunk, so that a cut at the end of a page leaves some of it. Without a radix
cache a prompt with ``ignore_eos`` is then cut at what is left, in whatever place.
"""

import asyncio
import sys
from typing import Any

import case  # type: ignore[import-not-found]
import engines  # type: ignore[import-not-found]
import shipped  # type: ignore[import-not-found]

TOKENS, RUNNING, TRIES = 8, 24, 4
ENGINE = {"page_size": 16, "chunked_prefill_size": 64, "enable_mixed_chunk": True, "disable_radix_cache": True}


def main() -> int:
    """The same prompt alone, then behind another running request and before one with ``ignore_eos``."""
    prompts = [one * 3 for one in shipped.questions(3, 5)]
    seen = engines.ask(shipped.target(), "two_chunks:answers", prompts, **ENGINE)
    if not isinstance(seen, list):
        return int(case.verdict("answers", seen))
    alone, beside = seen
    print(f"a prompt of {len(prompts[1])} tokens, chunks of {ENGINE['chunked_prefill_size']}")
    return int(case.verdict([alone] * TRIES, beside))


def answers(engine: Any, prompts: list[list[int]]) -> list[Any]:
    """The client: the second prompt's answer alone, and each time that the others were there."""
    return engine.loop.run_until_complete(_answers(engine, prompts))  # type: ignore[no-any-return]


async def _answers(engine: Any, prompts: list[list[int]]) -> list[Any]:
    first, cut, last = prompts

    def sampling(tokens: int, ignore_eos: bool) -> dict[str, Any]:
        return {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": ignore_eos}

    alone = await engine.async_generate(input_ids=cut, sampling_params=sampling(TOKENS, False))
    beside = []
    for _ in range(TRIES):
        running = await engine.async_generate(input_ids=first, sampling_params=sampling(RUNNING, True), stream=True)
        await anext(running)
        both = engine.async_generate(input_ids=[cut, last], sampling_params=[sampling(TOKENS, False), sampling(TOKENS, True)])
        found, _ = await asyncio.gather(both, _end(running))
        beside.append(found[0]["output_ids"])
    return [alone["output_ids"], beside]


async def _end(stream: Any) -> None:
    async for _ in stream:
        pass


if __name__ == "__main__":
    sys.exit(main())
