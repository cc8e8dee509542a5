"""What an engine is told of its device's memory, and what it says of it; a function for each instrument."""

import functools
import os
from typing import Any

BEFORE, LEFT = 80.0, 5.0
"""GiB that :func:`nearly_full` reports as free before the weights are loaded, and after."""
FREE = 12 << 30
"""Bytes that :func:`steady` reports as free when the engine starts."""


def nearly_full() -> None:
    """Report a GPU that weights have all but filled. SGLang's profiling, its default fraction, the pools and the requests are real."""
    from sglang.srt.distributed import bootstrap
    from sglang.srt.mem_cache import kv_cache_configurator

    from sglang_gemma4.memory import reserve_settings

    sglang: Any = bootstrap
    sglang.measure_pre_model_load_memory = lambda **_: BEFORE
    profiled: Any = kv_cache_configurator
    profiled.get_available_gpu_memory = lambda *_, **__: LEFT
    against = reserve_settings.reason_against

    def reason_against(server_args: Any, typed: float | None) -> str | None:
        reason = against(server_args, typed)
        return None if reason == "the device is cpu, not a CUDA GPU" else reason

    reserve_settings.reason_against = reason_against


def reserve_lines() -> None:
    """Have the scheduler print what the calculated reserve would say of this engine on a GPU."""
    from sglang.srt.runtime_context import get_server_args

    from sglang_gemma4.memory import reserve, reserve_settings

    def left(scheduler: Any) -> tuple[str, bool]:
        assert scheduler.tp_worker is not None
        given = get_server_args()
        need, steps = reserve_settings.needed(given), reserve_settings.steps_of(given)
        said, _ = reserve_settings.line(need.total + reserve.MARGIN + reserve.GIB, need, 2 * need.total, 0.5, None)
        return f"{steps}; {need}; {said}", True

    reserve_settings.left = left


def steady() -> None:
    """Report free memory that depends on this process alone, so that pools of two engines can be compared while other tests run."""
    import psutil

    measure = psutil.virtual_memory
    own = psutil.Process()
    before = own.memory_info().rss

    @functools.wraps(measure)
    def told() -> Any:
        return measure()._replace(available=FREE - (own.memory_info().rss - before))

    psutil.virtual_memory = told


def steady_for_each() -> None:
    """As :func:`steady`, counting what the asking process allocates: the scheduler, which holds the weights."""
    import psutil

    measure = psutil.virtual_memory
    first: dict[int, int] = {}

    @functools.wraps(measure)
    def told() -> Any:
        own = psutil.Process(os.getpid()).memory_info().rss
        return measure()._replace(available=FREE - (own - first.setdefault(os.getpid(), own)))

    psutil.virtual_memory = told


def bound_lines() -> None:
    """Sample at every step what limits the number of running requests, and report each second."""
    from sglang_gemma4.memory import bound

    bound.LOOK_SECONDS = 0.0
    bound.REPORT_SECONDS = 1.0
