"""A prefill server that names more sliding pages than the decode server asks for: the newest must arrive.

SGLang's own Mooncake managers in two processes; the kernel moves the bytes in the library's place. Both servers have one rank.
"""

import sys
from typing import Any

import case  # type: ignore[import-not-found]
import hetero_tp  # type: ignore[import-not-found]


def main() -> int:
    """130 tokens, of which the decode server has 96: it asks for 3 of the window's 4 pages."""
    ranks, memory = hetero_tp.prepare()
    cell: Any = ranks.Cell("26b-a4b", 1, [1], 16, [memory.Request(1, 130, 96)], backend="mooncake", exact=False)
    found = ranks.run(cell)
    return int(case.verdict("every byte in its place", found["wrong"] or "every byte in its place"))


if __name__ == "__main__":
    sys.exit(main())
