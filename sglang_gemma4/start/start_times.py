"""Seconds of the start by part, in the log and in /server_info."""

import functools
import logging
import multiprocessing
import time
from collections.abc import Callable, Sequence
from typing import Any

from sglang_gemma4.patching import note
from sglang_gemma4.start import kernels, table, times

logger = logging.getLogger("sglang_gemma4")


NAME, IMPORTS = "start_times", "imports"


def harmless(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``hook``: an exception is logged and drops one row of the start table; it never aborts the start."""

    @functools.wraps(hook)
    def tried(*args: Any, **kwargs: Any) -> Any:
        try:
            return hook(*args, **kwargs)
        except Exception as error:
            note(NAME, f"{hook.__name__}: {type(error).__name__}: {error}")
            return None

    return tried


def timed(name: str) -> Callable[..., Any]:
    """An AROUND hook that records its target as one part."""

    def around(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with times.part(name):
            return original(*args, **kwargs)

    return around


def timed_by_role(target: str, draft: str) -> Callable[..., Any]:
    """The same for a model runner's work, by whether it runs the target or the draft."""

    def around(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        runner = kwargs.get("model_runner", args[0] if args else None)
        with times.part(draft if getattr(runner, "is_draft_worker", False) else target):
            return original(*args, **kwargs)

    return around


@harmless
def begin_launching() -> None:
    """Record what came before the first call in the launching process as imports."""
    if multiprocessing.parent_process() is None and IMPORTS not in {one.name for one in times.recorded()}:
        times.record(IMPORTS, times.process_began(), time.time())


def resolve(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Around ``ServerArgs.resolve_once``: record it as one part."""
    begin_launching()
    with times.part("arguments"):
        return original(*args, **kwargs)


@harmless
def begin_scheduler(*_args: Any, **_kwargs: Any) -> None:
    """Before ``Scheduler.init_startup_timing_begin``: record this process's imports, and start counting kernels."""
    times.forget_parent()
    times.record("scheduler's imports", times.process_began(), time.time())
    kernels.watch()


@harmless
def hand_over(result: dict[str, Any], scheduler: Any, *_args: Any, **_kwargs: Any) -> None:
    """After ``Scheduler.get_init_info``: add the scheduler's parts for the launching process; then it counts as serving."""
    result[table.SCHEDULER] = table.of_scheduler()
    kernels.serves(lambda: int(scheduler.forward_ct))


@harmless
def take_over(_manager: Any, started: Any, *_args: Any, **_kwargs: Any) -> None:
    """Before ``Engine._set_startup_time``: take over the scheduler's parts."""
    infos: Sequence[dict[str, Any]] = started.scheduler_infos
    table.take_scheduler(infos)


@harmless
def say(_server_args: Any) -> None:
    """Before ``_freeze_gc_after_server_warmup``, after which SGLang reports the server ready: log the start table."""
    logger.info("sglang-gemma4: %s", "\n".join(table.lines(table.finish())))
