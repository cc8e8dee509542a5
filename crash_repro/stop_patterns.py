"""One request's stop_regex backtracks, and every other request of the server waits for it. Needs no GPU."""

import asyncio
import sys
from typing import Any

import case  # type: ignore[import-not-found]
import engines  # type: ignore[import-not-found]
import psutil
import shipped  # type: ignore[import-not-found]

PATTERN = "(?s)(.*){3}#"
"""Each step of an answer of n characters without # tries some n**3 ways to divide it; with n**13 none would end."""
LONGEST = 0.3
"""Seconds of CPU of the scheduler between two tokens of another request that are no sign of waiting; a busy machine's clock shows more."""


def main() -> int:
    """How both requests end, and whether the one without a pattern waits for the other."""
    seen = engines.ask(shipped.target("tiny-26b-a4b"), "stop_patterns:beside", skip_tokenizer_init=False)
    return int(case.verdict([f"waits less than {LONGEST:g} s", "stop_regex: took too long"], seen))


def beside(engine: Any, _extra: None) -> list[str]:
    """The client: a stream, and a request with the pattern beside it."""
    sampling = {"max_new_tokens": 64, "temperature": 0, "ignore_eos": True}

    def seconds() -> float:
        return sum(sum(process.cpu_times()[:2]) for process in psutil.Process().children(recursive=True))

    async def gaps() -> float:
        stream, longest, last = await engine.async_generate("Who rules Belm?", sampling_params=sampling, stream=True), 0.0, seconds()
        async for _ in stream:
            now = seconds()
            longest, last = max(longest, now - last), now
        return longest

    async def both() -> Any:
        pattern = engine.async_generate("Tell me a story.", sampling_params={**sampling, "stop_regex": PATTERN})
        return await asyncio.gather(gaps(), pattern, return_exceptions=True)

    longest, answer = engine.loop.run_until_complete(both())
    print(f"longest wait {longest:.2f} s; {answer!s:.200}", flush=True)
    said = isinstance(answer, ValueError) and "stop_regex" in str(answer) and "took" in str(answer)
    return [f"waits {'less' if longest < LONGEST else 'more'} than {LONGEST:g} s", f"stop_regex: {'took too long' if said else 'answered'}"]


if __name__ == "__main__":
    sys.exit(main())
