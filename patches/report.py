"""Say what is patched: a banner at start-up, the list in /server_info."""

import logging
import multiprocessing
from collections.abc import Callable
from typing import Any

from sglang_gemma4.patching import Hook, Patch, report

logger = logging.getLogger("sglang_gemma4")
_said = False


def say_banner(_result: object, *_args: object, **_kwargs: object) -> None:
    """Log the banner once per server: in the launching process, after its logging is set up."""
    global _said
    if _said or multiprocessing.parent_process() is not None:
        return
    _said = True
    from sglang_gemma4.diagnostics.status import banner

    logger.info("%s", banner())


def add_scheduler_list(result: Any, *_args: object, **_kwargs: object) -> None:
    """Add the scheduler process's list to its internal state (``GetInternalStateReqOutput``)."""
    from sglang_gemma4.diagnostics.status import as_data

    result.internal_state["sglang_gemma4"] = {"scheduler": as_data(report())}


async def add_frontend_list(original: Callable[..., Any], self: Any) -> list[dict[str, Any]]:
    """Add the list of the process that answers HTTP beside the scheduler's."""
    import sglang_gemma4
    from sglang_gemma4.diagnostics.status import as_data

    states: list[dict[str, Any]] = await original(self)
    for state in states:
        state.setdefault("sglang_gemma4", {}).update(version=sglang_gemma4.__version__, frontend=as_data(report()))
    return states


PATCH = Patch(
    name="report",
    switch="SGLANG_GEMMA4_REPORT",
    why="SGLang swallows plugin errors and says nothing of what a plugin changed; an operator must be able to see it.",
    evidence="srt/plugins/__init__.py:136 · srt/entrypoints/http_server.py:857",
    remove_when="SGLang lists applied hooks and failed plugins in /server_info.",
    hooks=(
        Hook("sglang.srt.utils.common.configure_logger", "after", say_banner, "fc59929ac6c2"),
        Hook(
            "sglang.srt.managers.scheduler_components.internal_state.SchedulerInternalStateController.get_internal_state",
            "after",
            add_scheduler_list,
            "19ec0b438910",
        ),
        Hook(
            "sglang.srt.managers.tokenizer_control_mixin.TokenizerControlMixin.get_internal_state",
            "around",
            add_frontend_list,
            "c4a7cbb66e34",
        ),
    ),
)
