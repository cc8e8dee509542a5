"""Lets MTP run on SGLang's unified memory, whose split between full and sliding layers follows the load."""

from collections.abc import Callable
from typing import Any

from sglang_gemma4.patching import switches


def accept_draft(server_args: Any, previous: Callable[[Any], None]) -> None:
    """See ``unified_pool.accept_draft``; a command line ends with only its message."""
    from sglang_gemma4.diagnostics.mtp_limits import CPU_BACKENDS
    from sglang_gemma4.diagnostics.start_checks import one_line
    from sglang_gemma4.speculative import unified_pool

    with one_line():
        unified_pool.accept_draft(server_args, previous, CPU_BACKENDS if switches.is_on(switches.CPU_ENGINE) else ())
