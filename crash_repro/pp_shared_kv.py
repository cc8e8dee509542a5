"""E2B over two pipeline stages: layers read the KV of another stage. Needs no GPU."""

import sys

import two_ranks  # type: ignore[import-not-found]


def main() -> int:
    """tiny-e2b by SGLang's own split, between the layers that own KV and those that read it; prepare= is in two_ranks.py."""
    return int(two_ranks.verdict("tiny-e2b", "--pp-size 2: layers 5 to 9 read the KV of layers 3 and 4", pp_size=2))


if __name__ == "__main__":
    sys.exit(main())
