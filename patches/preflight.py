"""Check what the operator asked for before SGLang resolves it."""

import sys
from pathlib import Path
from typing import Any

from sglang_gemma4.patching import Hook, Patch

COMMAND_LINES = ("sglang.launch_server", "sglang.cli.main", "sglang.cli.__main__")


def is_command_line() -> bool:
    """Whether this process is SGLang's own command: ``python -m sglang.launch_server`` or ``sglang serve``."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return getattr(spec, "name", None) in COMMAND_LINES or Path(sys.argv[0]).name == "sglang"


def check_arguments(server_args: Any) -> None:
    """Run the preflight checks on a ``ServerArgs``; a command line ends with one line, an Engine call raises ``PreflightError``."""
    from sglang_gemma4.diagnostics import preflight

    if getattr(server_args, "_resolution_finished", False):  # in a child process: checked by its parent
        return
    try:
        preflight.check({name: getattr(server_args, name, None) for name in preflight.FIELDS})
    except preflight.PreflightError as error:
        if is_command_line():
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
