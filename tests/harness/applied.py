"""The package's parts in unit tests: what they change is imported once in the test's process, and patched in a forked child."""

import importlib
from collections.abc import Iterable

from sglang_gemma4 import patching
from sglang_gemma4.patching import Part, hooks

SERVING = ("openai.serving_chat", "openai.serving_responses", "openai.serving_completions", "anthropic.serving")
APPLICATION = (*SERVING, "http_server")


def import_entry_points(names: Iterable[str], parts: Iterable[Part] = ()) -> None:
    """Import these modules of SGLang's entry points and all that ``parts`` change, once, not in every child."""
    for name in names:
        importlib.import_module(f"sglang.srt.entrypoints.{name}")
    for part in parts:
        for hook in part.hooks:
            hooks.target_of(hook)


def apply(parts: Iterable[Part], switch: str = "1") -> None:
    """Apply ``parts`` in this process, all switched to ``switch``; what cannot be placed raises."""
    parts = list(parts)
    patching.apply(parts, {**{part.switch: switch for part in parts}, "SGLANG_GEMMA4_STRICT": "1"})
