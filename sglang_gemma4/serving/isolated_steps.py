"""Hooks around the scheduler's steps: only the request that raises ends, with status 400 or 500; the others go on."""

import os
from collections.abc import Callable, Mapping
from typing import Any

from sglang_gemma4 import patching
from sglang_gemma4.patching import switches

OURS_OF = "_sglang_gemma4_isolates"


def keep_going(original: Callable[[Any], None], scheduler: Any) -> None:
    """Around the two loops: a failed step is repaired, then the loop begins again."""
    from sglang.srt.utils import DynamicGradMode

    from sglang_gemma4.serving.isolation import Isolation, StepFailed, reason_against

    reason = traps_are_set() or reason_against(scheduler)
    if reason is not None:
        patching.decline("isolation", reason)
        return original(scheduler)
    isolation = Isolation(scheduler)
    setattr(scheduler, OURS_OF, True)
    while True:
        try:
            return original(scheduler)
        except StepFailed as failed:
            with DynamicGradMode():  # as both loops run, outside of which this is
                isolation.recover(failed)


def schedule(original: Callable[..., Any], scheduler: Any, *args: Any, **kwargs: Any) -> Any:
    """Around ``get_next_batch_to_run``: turn an exception into ``StepFailed``."""
    waiting = list(scheduler.waiting_queue)
    try:
        return original(scheduler, *args, **kwargs)
    except Exception as error:
        there = set(scheduler.waiting_queue)
        failed = _failed(scheduler, error, "schedule", None, tuple(req for req in waiting if req not in there))
        if failed is None:
            raise
        raise failed from error


def run(original: Callable[..., Any], scheduler: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
    """Around ``run_batch``: turn an exception into ``StepFailed``."""
    beside = getattr(batch, "beside", None)  # the patch prefill_beside removes it
    try:
        return original(scheduler, batch, *args, **kwargs)
    except Exception as error:
        if (failed := _failed(scheduler, error, "run", batch, () if beside is None else tuple(beside.reqs))) is None:
            raise
        raise failed from error


def sample(original: Callable[..., Any], scheduler: Any, result: Any, batch: Any) -> Any:
    """Around ``launch_batch_sample_if_needed``: turn an exception into ``StepFailed``."""
    try:
        return original(scheduler, result, batch)
    except Exception as error:
        if (failed := _failed(scheduler, error, "sample", batch)) is None:
            raise
        raise failed from error


def process(original: Callable[..., Any], scheduler: Any, batch: Any, result: Any) -> Any:
    """Around ``process_batch_result``: turn an exception into ``StepFailed``."""
    beside = getattr(result, "beside", None)
    try:
        return original(scheduler, batch, result)
    except Exception as error:
        if (failed := _failed(scheduler, error, "process", batch, () if beside is None else tuple(beside[0].reqs))) is None:
            raise
        raise failed from error


def _failed(scheduler: Any, error: Exception, during: str, batch: Any, lost: tuple[Any, ...] = ()) -> Any:
    """The ``StepFailed`` for the loop to catch; None if failures are not isolated or ``error`` is one already."""
    from sglang_gemma4.serving.isolation import StepFailed

    if isinstance(error, StepFailed) or not getattr(scheduler, OURS_OF, False):
        return None
    return StepFailed(error, during, batch, lost)


def traps_are_set(environ: Mapping[str, str] = os.environ) -> str | None:
    """Why failures are not isolated if debug traps are set, or None: a trap's error must end the server, with its dump."""
    return "SGLANG_GEMMA4_DEBUG=1: a trap's error ends the server" if switches.is_on("SGLANG_GEMMA4_DEBUG", environ) else None
