"""Check what the operator asked for before SGLang resolves it."""

import multiprocessing
import sys
from typing import Any

from sglang_gemma4.patching import Hook, Patch

COMMAND_LINES = ("sglang.launch_server", "sglang.cli.main", "sglang.cli.__main__")


def check_arguments(server_args: Any) -> None:
    """Run the preflight checks on a ``ServerArgs``; a command line ends with one line, an Engine call raises ``PreflightError``."""
    from sglang_gemma4.diagnostics import preflight

    if getattr(server_args, "_resolution_finished", False) or multiprocessing.parent_process() is not None:
        return
    try:
        preflight.check(vars(server_args))
    except preflight.PreflightError as error:
        spec = getattr(sys.modules["__main__"], "__spec__", None)
        if getattr(spec, "name", None) in COMMAND_LINES:
            raise SystemExit(f"sglang-gemma4: {error}") from None
        raise


PATCH = Patch(
    name="preflight",
    switch="SGLANG_GEMMA4_PREFLIGHT",
    why="Stock ends in a shape error after loading weights, or in a page of traceback.",
    evidence="srt/arg_groups/model_hook.py:646 (assert) · srt/models/gemma4_mtp.py (no geometry check)",
    remove_when="SGLang checks assistant against target before loading.",
    hooks=(Hook("sglang.srt.server_args.ServerArgs.resolve_once", "before", check_arguments, "7822e7d5cefd"),),
)
