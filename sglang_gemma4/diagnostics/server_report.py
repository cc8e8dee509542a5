"""Hooks that log the banner when the server is ready and add the patches to /server_info."""

import logging
import multiprocessing
from collections.abc import Callable
from typing import Any

KEY = "sglang_gemma4"


logger = logging.getLogger("sglang_gemma4")


_said = False


def say_opening(_result: object, *_args: object, **_kwargs: object) -> None:
    """Log the opening line once per server, in the launching process, after its logging is set up."""
    global _said
    if _said or multiprocessing.parent_process() is not None:
        return
    _said = True
    from sglang_gemma4.diagnostics.status import opening

    logger.info("%s", opening())


def send_rows(result: dict[str, Any], scheduler: Any) -> None:
    """After ``Scheduler.get_init_info``, which tells the launching process that the scheduler is ready: add its patches and choices."""
    from sglang_gemma4.diagnostics import chosen, status

    result[KEY] = {"rows": status.rows(), "chosen": chosen.lines(scheduler)}


def say_banner(infos: list[dict[str, Any]], *_args: object, **_kwargs: object) -> None:
    """After ``_wait_for_scheduler_ready``: log the banner for this process and the first scheduler.

    Under a data-parallel controller no scheduler's rows arrive; the banner then has only this process's.
    """
    from sglang.srt.runtime_context import get_server_args

    from sglang_gemma4.diagnostics import status

    told = [info.pop(KEY) for info in infos if KEY in info]
    given, first = get_server_args(), told[0] if told else {"rows": [], "chosen": []}
    logger.info("%s", status.banner(status.merged(first["rows"], status.rows()), first["chosen"], given.url()))


def add_scheduler_list(result: Any, *_args: object, **_kwargs: object) -> None:
    """Add the scheduler's patch list, and its count of kernels compiled while serving, to ``GetInternalStateReqOutput``."""
    from sglang_gemma4.diagnostics import status
    from sglang_gemma4.start import kernels

    late = kernels.counts()["while serving"] if kernels.is_watching() else None
    result.internal_state[KEY] = {"scheduler": status.rows(), "compiled_while_serving": late}


async def add_frontend_list(original: Callable[..., Any], self: Any) -> list[dict[str, Any]]:
    """Add the HTTP process's patch list, the counts by state over both processes, and the start table to the scheduler's answer."""
    import sglang_gemma4
    from sglang_gemma4.diagnostics import status
    from sglang_gemma4.start import table

    states: list[dict[str, Any]] = await original(self)
    for state in states:
        ours, frontend = state.setdefault(KEY, {}), status.rows()
        counts = status.counts(status.merged(ours.get("scheduler", ()), frontend))
        ours.update(version=sglang_gemma4.__version__, frontend=frontend, states=counts, start=table.data())
    return states
