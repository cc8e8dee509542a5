"""Calculates the memory kept beside weights and KV if asked to, or where SGLang's rule leaves no pool.

Once graphs are captured, the log says what is left unused.
"""

import logging
from collections.abc import Callable
from typing import Any

from sglang_gemma4.patching import decline, note, tell

NAME = "memory_reserve"


logger = logging.getLogger(__name__)


def keep_what_is_needed(original: Callable[[Any], None], server_args: Any) -> None:
    """Around ``handle_gpu_memory_settings``, which chooses --mem-fraction-static where the operator gave none."""
    from sglang.srt.arg_groups.overrides import declare_resolution, resolving_view

    from sglang_gemma4.memory import given

    typed = resolving_view(server_args).mem_fraction_static
    original(server_args)
    asked = given.reserve_gib()
    if asked is None:
        return
    from sglang_gemma4.memory import reserve_settings

    problem = reserve_settings.reason_against(server_args, typed)
    if problem is not None:
        decline(NAME, problem)
        return
    fraction, said = reserve_settings.chosen(server_args, asked)
    tell(NAME, said)
    declare_resolution(server_args, f"sglang_gemma4.{NAME}", mem_fraction_static=fraction)


def size_pools(original: Callable[[Any, float], Any], kvc: Any, pre_model_load_memory: float) -> Any:
    """Around ``_resolve_memory_pool_config``: keep the calculated reserve if SGLang leaves no pool for one request."""
    if kvc.is_draft_worker or not type(kvc.model).__name__.startswith("Gemma4"):
        return original(kvc, pre_model_load_memory)
    from sglang_gemma4.memory import reserve_fallback

    found, said = reserve_fallback.size_pools(lambda: original(kvc, pre_model_load_memory), kvc, pre_model_load_memory)
    if said:
        tell(NAME, said)
    return found


def keep_no_pool_twice(kept: float, *, mm_feature_transport: str | None, **_kwargs: Any) -> float:
    """After ``mm_runtime_reservation_gb``: with our reserve, do not reserve again what the tokenizer process took.

    That process allocates its pool while the weights load (entrypoints/engine.py:1339), and SGLang then subtracts as
    much from the pools again. If the process is late, its pool takes a part of the reserve's safety.
    """
    from sglang.srt.environ import envs

    from sglang_gemma4.memory import given, reserve_fallback

    ours = given.reserve_gib() is not None or reserve_fallback.in_force
    if not ours or mm_feature_transport != "cuda_ipc" or kept <= 0:
        return kept
    return max(0.0, kept - float(envs.SGLANG_MM_FEATURE_CACHE_MB.get()) / 1024)


def tell_what_is_left(_result: None, scheduler: Any) -> None:
    """After ``Scheduler.init_all_cuda_graphs``, the last step of a start that takes memory: log what is left."""
    from sglang_gemma4.memory import reserve_settings

    try:
        said, enough = reserve_settings.left(scheduler)
    except Exception as error:  # a line of the log must not abort a start
        note(NAME, f"what is left unused is not known: {type(error).__name__}: {error}")
        return
    if said and enough:
        tell(NAME, said)
    elif said:
        logger.warning("sglang-gemma4: %s", said)
