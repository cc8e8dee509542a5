"""What SGLang calls in every process through the ``sglang.srt.plugins`` entry point. This module only wires; it
decides nothing."""

import contextlib
import logging
from importlib import import_module

from sglang_gemma4 import patching
from sglang_gemma4.diagnostics import variables
from sglang_gemma4.patching import switches
from sglang_gemma4.patching.supported import reason_against_version
from sglang_gemma4.start import times

logger = logging.getLogger(__name__)


def register() -> None:
    """Check the switches and apply the patches.

    SGLang logs and swallows ``Exception`` from a plugin; what the operator must not miss leaves as ``SystemExit``.
    """
    if problems := variables.problems():
        raise SystemExit("\n".join(f"sglang-gemma4: {problem}" for problem in problems))
    if not switches.is_on(switches.MASTER) and not switches.is_on(switches.CPU_ENGINE):
        return  # before anything of SGLang is looked at: stock stays stock
    from sglang_gemma4.diagnostics.start_checks import is_command_line
    from sglang_gemma4.patches import load_all

    patches = load_all()
    if unknown := switches.names_left_out() - {patch.name for patch in patches}:
        raise SystemExit(f"sglang-gemma4: {switches.WITHOUT}: {', '.join(sorted(unknown))} is no patch; `sglang-gemma4 patches` lists them")
    if problem := reason_against_version():
        logger.warning("sglang-gemma4: nothing is applied: %s", problem)
    if is_command_line():
        with contextlib.suppress(Exception):  # a patch whose hook is there says what fails
            import_module("sglang.srt.entrypoints.http_server")  # SGLang would next; the start table counts it as imports, not as patches
    try:
        with times.part("this package's patches"):
            patching.apply(patches)
    except patching.PatchError as error:
        raise SystemExit(str(error)) from error
    except Exception as error:
        if switches.is_on(switches.STRICT):
            raise SystemExit(f"sglang-gemma4: the patches cannot be applied: {type(error).__name__}: {error}") from error
        raise  # SGLang logs it with its traceback
