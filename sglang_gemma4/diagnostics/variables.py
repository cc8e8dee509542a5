"""Environment variables of this package: switches and values alike, read without torch and SGLang, so that every command can judge them."""

import os
from collections.abc import Mapping

from sglang_gemma4.memory import given
from sglang_gemma4.patching import switches
from sglang_gemma4.speculative import beside_bounds


def problems(environ: Mapping[str, str] = os.environ) -> list[str]:
    """One message for each variable that no server starts with: unknown, no boolean, or with a value that means nothing."""
    return [*switches.check_all(environ), *beside_bounds.problems(environ), *given.problems(environ)]
