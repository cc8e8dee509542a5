"""What SGLang calls in every process through the ``sglang.srt.plugins`` entry point. It wires and decides nothing."""

import logging

from sglang_gemma4 import patching, switches

logger = logging.getLogger(__name__)


def register() -> None:
    """Check the switches and apply the patches.

    SGLang logs and swallows ``Exception`` from a plugin; what the operator must not miss leaves as ``SystemExit``.
    """
    if problems := switches.check_all():
        raise SystemExit("\n".join(f"sglang-gemma4: {problem}" for problem in problems))
    if not switches.is_on(switches.MASTER) and not switches.is_on(switches.CPU_ENGINE):
        return
    from sglang_gemma4.patches import load_all

    try:
        outcomes = patching.apply(load_all())
    except patching.PatchError as error:
        raise SystemExit(str(error)) from error
    found = patching.installed_sglang()
    if any(outcome.state == "declined" and found in outcome.reason for outcome in outcomes if found):
        logger.warning("sglang-gemma4: %s", next(o.reason for o in outcomes if o.state == "declined"))
