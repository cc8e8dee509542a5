"""Data-parallel attention: heads are split over all ranks, KV pools over those of one group. Needs no GPU."""

import sys

import two_ranks  # type: ignore[import-not-found]


def main() -> int:
    """tiny-26b-a4b over two ranks, each with attention of its own; prepare= is in two_ranks.py."""
    return int(two_ranks.verdict("tiny-26b-a4b", tp_size=2, attn_dp_size=2))


if __name__ == "__main__":
    sys.exit(main())
