"""One module per place in SGLang. A module declares ``PARTS``, what operators see and switch, and ``SEAMS``, where they go in.

A seam module imports neither torch nor sglang. Where several parts change one function of SGLang, they do so in the order of this list
and of ``PARTS``.
"""

import dataclasses
import functools
from importlib import import_module

from sglang_gemma4.patching import Part

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
    for name in MODULES:
        module = import_module(f"{__name__}.{name}")
        for part in module.PARTS:
            found[part.name] = dataclasses.replace(part, hooks=tuple(seam for seam in module.SEAMS if part.name in seam.parts))
    return found


def load(name: str) -> Part:
    """The part with this name, with its seams."""
    return _by_name()[name]


def load_all() -> list[Part]:
    """Every declared part with its seams, in the order in which they are applied."""
    return list(_by_name().values())


def names() -> list[str]:
    """The names of all parts, in the order in which they are applied."""
    return list(_by_name())
