"""NIXL, one number of KV heads in all layers, so that nothing else fails: fewer heads than prefill ranks, and two sizes of decode servers.

Ranks are processes with SGLang's own managers and real NIXL agents over host memory.
"""

import sys
from typing import Any

import case  # type: ignore[import-not-found]
import hetero_tp  # type: ignore[import-not-found]

EXPECTED = "every byte in its place"


def main() -> int:
    """E2B's one head from 2 prefill ranks to 4 decode ranks; 4 heads from one prefill rank to servers of 2 and of 4 ranks."""
    ranks, memory = hetero_tp.prepare()
    cells: list[Any] = [
        ranks.Cell("e2b", 2, [4], 16, [memory.Request(1, 130)], seconds=8.0),
        ranks.Cell("four-heads", 1, [2, 4], 16, [memory.Request(1, 130), memory.Request(2, 130, server=1)], seconds=8.0),
    ]
    found = [ranks.run(cell)["wrong"] or EXPECTED for cell in cells]
    return int(case.verdict([EXPECTED] * 2, found))


if __name__ == "__main__":
    sys.exit(main())
