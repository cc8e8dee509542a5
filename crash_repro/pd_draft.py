"""MTP between a prefill and a decode server (--disaggregation-mode): the prefill server dies at the first request. Needs no GPU.

Both servers are SGLang's with its Mooncake backend, but for the library that moves the bytes (``instruments/pd_pair.py``). A machine
without a GPU has synchronous MTP only, which stock SGLang cannot run (``sync_mtp.py``): for stock, that alone is repaired here.
"""

import importlib
import sys
from pathlib import Path
from typing import Any

import case  # type: ignore[import-not-found]
import engines  # type: ignore[import-not-found]
import shipped  # type: ignore[import-not-found]

TOKENS = 16


def main() -> int:
    """The decode server's greedy answers against transformers'."""
    extra = {"prompts": shipped.questions(2, 8), "tokens": TOKENS, "updated": None}
    options: dict[str, Any] = {**shipped.mtp(), "page_size": 1}
    switches = engines.stock_but(shipped.SYNC_MTP)
    seen = engines.ask(
        shipped.target(), "case:continue_prompts", extra, env=switches, prepare="pd_draft:two_servers", time_limit=120, **options
    )
    return int(case.verdict(shipped.greedy(shipped.load(), extra["prompts"], TOKENS), seen))


def two_servers() -> None:
    """Have the engine be a pair."""
    sys.path.append(str(Path(__file__).parents[1]))
    pair: Any = importlib.import_module("tests.harness.instruments.pd_pair")
    pair.pair()


if __name__ == "__main__":
    sys.exit(main())
