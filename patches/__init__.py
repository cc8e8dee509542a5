"""One module per place in SGLang. A module declares ``PARTS``, what operators see and switch, and ``SEAMS``, where they go in.

A seam module imports neither torch nor sglang. Where several seams change one function of SGLang, :mod:`.order` says which wraps which;
the order of modules and of ``PARTS`` is that of lists which operators read.
"""

import dataclasses
import functools
from importlib import import_module

from sglang_gemma4.patches.order import ORDER
from sglang_gemma4.patching import Entry, Part, Seam

MODULES = (
    "diagnosis",
    "server",
    "models",
    "experts",
    "prefill",
    "attention",
    "mtp",
    "verify",
    "lora",
    "disaggregation",
    "requests",
    "checkpoints",
    "media",
    "memory",
    "answers",
    "cpu",
    "protocols",
)


@functools.cache
def _by_name() -> dict[str, Part]:
    found: dict[str, Part] = {}
    turns = {shared.target: shared.parts for shared in ORDER}
    for name in MODULES:
        module = import_module(f"{__name__}.{name}")
        seams = [_in_turn(seam, turns.get(seam.target, ())) for seam in module.SEAMS]
        for part in module.PARTS:
            found[part.name] = dataclasses.replace(part, hooks=tuple(seam for seam in seams if part.name in seam.parts))
    return found


def _in_turn(seam: Seam | Entry, parts: tuple[str, ...]) -> Seam | Entry:
    turn = next((parts.index(part) for part in seam.parts if part in parts), None)
    return seam if turn is None or not isinstance(seam, Seam) else dataclasses.replace(seam, turn=turn)


def load(name: str) -> Part:
    """The part with this name, with its seams."""
    return _by_name()[name]


def load_all() -> list[Part]:
    """Every declared part with its seams, in the order of lists."""
    return list(_by_name().values())


def names() -> list[str]:
    """The names of all parts, in the order of lists."""
    return list(_by_name())
