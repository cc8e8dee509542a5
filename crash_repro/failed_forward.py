"""What one request's data raises inside a forward ends the scheduler, and with it every other client's request. Needs no GPU."""

import sys
from typing import Any

import case  # type: ignore[import-not-found]
import engines  # type: ignore[import-not-found]
import shipped  # type: ignore[import-not-found]

POISON = 301
"""The token at which instruments/faults.py has a prefill raise, in place of data that nothing in front of the scheduler knows yet."""


def main() -> int:
    """How a request with it ends, how many tokens one beside it gets, and how many one behind it."""
    seen = engines.ask(shipped.target(), "failed_forward:ends", prepare="tests.harness.instruments.faults:prefill", time_limit=120.0)
    return int(case.verdict(["poisoned", 24, 24], seen))


def ends(engine: Any, _extra: None) -> list[Any]:
    """The client."""
    import asyncio

    async def ask(prompt: list[int]) -> Any:
        try:
            sampling = {"temperature": 0, "max_new_tokens": 24, "ignore_eos": True}
            return len((await engine.async_generate(input_ids=prompt, sampling_params=sampling))["output_ids"])
        except Exception as error:
            said = str(getattr(error, "detail", error))
            return "poisoned" if "poisoned" in said else said

    async def everybody() -> list[Any]:
        good = [2, *range(400, 420)]
        together = await asyncio.gather(ask([2, 350, POISON, 360]), ask(good))
        return [*together, await ask(good)]

    found: list[Any] = engine.loop.run_until_complete(everybody())
    return found


if __name__ == "__main__":
    sys.exit(main())
