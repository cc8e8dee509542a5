"""A prompt whose window is half on the host ends a server whose sliding pool is short: "Out of memory". Needs no GPU.

HiCache reads the older part of the window back and locks the newer one, which admission had counted as evictable. The host's copies are
torch's here, everything else is SGLang's.
"""

import asyncio
import sys
from typing import Any

import case  # type: ignore[import-not-found]
import engines  # type: ignore[import-not-found]
import shipped  # type: ignore[import-not-found]

SLIDING, TOKENS = 200, 1600
"""Tokens of the sliding pool, three windows; of the full pool, more than enough."""
ENGINE = {
    "enable_hierarchical_cache": True,
    "hicache_ratio": 8.0,
    "hicache_io_backend": "direct",
    "hicache_mem_layout": "layer_first",
    "hicache_write_policy": "write_through",
    "max_total_tokens": TOKENS,
    "chunked_prefill_size": 128,
}
RUNNING, STARTED = 60, 2
"""Tokens of the answer that runs meanwhile, and how many it has as the last prompt comes."""


def main() -> int:
    """The same five prompts with a sliding pool that has room for all and with a short one."""
    answers = []
    for sliding in (TOKENS, SLIDING):
        print(f"{sliding} sliding tokens for windows of 64")
        answers.append(
            engines.ask(
                shipped.target("tiny-26b-a4b"),
                "host_hits:answers",
                env=engines.package_with("host_hits"),
                prepare="tests.harness.instruments.host_cache:torch_copies",
                swa_full_tokens_ratio=sliding / TOKENS,
                **ENGINE,
            )
        )
    return int(case.verdict(*answers))


def prompt(length: int, step: int) -> list[int]:
    """Token ids that share only the first one with prompts of another ``step``."""
    return [2, *((place * step) % 691 + 300 for place in range(1, length))]


def answers(engine: Any, _extra: Any) -> list[list[int]]:
    """The client: a session of two turns, a prompt that drives half of its window out, an answer that runs, and the session's next turn."""
    return engine.loop.run_until_complete(_answers(engine))  # type: ignore[no-any-return]


async def _answers(engine: Any) -> list[list[int]]:
    session = prompt(184, 7)
    found = [await _answer(engine, asked) for asked in (session[:110], session[:134], prompt(150, 11))]
    running = asyncio.ensure_future(_answer(engine, prompt(70, 13), RUNNING, started := asyncio.Event()))
    await started.wait()
    return [*found, await _answer(engine, session), await running]


async def _answer(engine: Any, asked: list[int], tokens: int = 1, started: asyncio.Event | None = None) -> list[int]:
    sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
    told: list[int] = []
    async for chunk in await engine.async_generate(input_ids=asked, sampling_params=sampling, stream=True):
        told = chunk["output_ids"]
        if started is not None and len(told) >= STARTED:
            started.set()
    return told


if __name__ == "__main__":
    sys.exit(main())
