"""What tests stand on: processes, schedules and instruments. README.md says what each part does and how to switch it off."""

import os

PARTS = ("nursery", "patched", "ports", "checks", "interpreter", "recordings", "scheduler", "freeze")
"""Parts that ``TEST_HARNESS_OFF`` can name."""


def is_off(part: str) -> bool:
    """Whether the environment's ``TEST_HARNESS_OFF``, names between spaces, switches a part off.

    Raises:
        ValueError: it names something that is no part.
    """
    named = os.environ.get("TEST_HARNESS_OFF", "").split()
    unknown = sorted(set(named) - set(PARTS))
    if unknown:
        raise ValueError(f"TEST_HARNESS_OFF names {unknown[0]!r}; the parts are {', '.join(PARTS)}")
    return part in named
