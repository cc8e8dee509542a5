"""A prefill server of two ranks feeds a decode server of four: every byte of KV, full and sliding layers, 26B-A4B's KV heads.

Ranks are processes with SGLang's own NIXL managers and real NIXL agents over host memory. An argument is JSON: other cells to try, one
answer a line; ``-``: they are read from standard input, one a line.
"""

import importlib
import json
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent))  # where a test imports this file


def prepare() -> tuple[Any, Any]:
    """Import SGLang, put the patches in place, and return the modules ``ranks`` and ``rank_memory``."""
    from sglang_gemma4.cpu.environment import prepare_this_process

    prepare_this_process()
    import torch

    torch.set_num_threads(1)  # up to 17 ranks share this machine's cores
    import rank_memory  # type: ignore[import-not-found]
    import ranks  # type: ignore[import-not-found]
    import sglang.srt.managers.scheduler  # noqa: F401 - forked ranks need not import it again, nor the following
    from sglang.srt.plugins import load_plugins

    importlib.import_module("nixl._api")
    load_plugins()
    return ranks, rank_memory


def main() -> int:
    """Try 2 prefill ranks with 4 decode ranks, or what is asked for."""
    import case  # type: ignore[import-not-found]

    ranks, memory = prepare()
    given = "".join(sys.argv[1:2])
    asked: Iterable[dict[str, Any]] = map(json.loads, sys.stdin) if given == "-" else json.loads(given or "[]")
    for one in asked:
        started = time.monotonic()
        found = ranks.run(ranks.Cell(**{**one, "requests": [memory.Request(**request) for request in one["requests"]]}))
        print("CELL " + json.dumps({**found, "took": time.monotonic() - started}), flush=True)
    if given:
        return 0
    found = ranks.run(ranks.Cell("26b-a4b", 2, [4], 16, [memory.Request(1, 130), memory.Request(2, 40)]))
    return int(case.verdict("every byte in its place", found["wrong"] or "every byte in its place"))


if __name__ == "__main__":
    sys.exit(main())
