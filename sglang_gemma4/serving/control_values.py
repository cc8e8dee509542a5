"""Refuses administrative requests that would end or stop the server, before the scheduler sees them.

Each type of request has a checker: it takes the request and the server's state, and returns why the request is refused, or None.
"""

import importlib.util
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

LONGEST_PAUSE = 60.0
"""Limit of ``forward_sleep_time``: seconds between two steps."""
MEMORY_KINDS = ("kv_cache", "weights", "cuda_graph")
ACTIVITIES = ("CPU", "GPU", "XPU", "MEM", "CUDA_PROFILER", "RPD")
ON_A_CARD = ("MEM", "CUDA_PROFILER")


@dataclass(frozen=True)
class ServerState:
    """The server state that the checks of administrative requests need.

    Attributes:
        watchdog_seconds: a step that takes longer ends the server; None or 0 without a watchdog.
        memory_saver: whether memory can be released.
        records_experts: whether the distribution of experts can be recorded.
        released: kinds of memory that are currently released.
    """

    watchdog_seconds: float | None
    memory_saver: bool
    records_experts: bool
    has_card: bool
    released: frozenset[str] = frozenset()


def refusal(request: Any, state: ServerState) -> str | None:
    """Why an administrative request is refused, or None."""
    check = CHECKS.get(type(request).__name__)
    return None if check is None else check(request, state)


def _slow_down(request: Any, state: ServerState) -> str | None:
    seconds, most = request.forward_sleep_time, min(LONGEST_PAUSE, (state.watchdog_seconds or 2 * LONGEST_PAUSE) / 2)
    if seconds is None or seconds <= most:
        return None
    return f"forward_sleep_time: {seconds:g} s are more than {most:g} s; nothing is answered meanwhile, not even the request that ends it"


def _experts(_request: Any, state: ServerState) -> str | None:
    if state.records_experts:
        return None
    return "the distribution of experts is not recorded by this server; start it with --expert-distribution-recorder-mode"


def _release(request: Any, state: ServerState) -> str | None:
    already = [kind for kind in request.tags or MEMORY_KINDS if kind in state.released]
    return _memory(request, state) or (f"tags: {', '.join(already)} released already; resume first" if already else None)


def _resume(request: Any, state: ServerState) -> str | None:
    missing = [kind for kind in request.tags or MEMORY_KINDS if kind not in state.released]
    return _memory(request, state) or (f"tags: {', '.join(missing)} not released" if missing else None)


def _memory(request: Any, state: ServerState) -> str | None:
    if not state.memory_saver:
        return "no memory can be released by this server; start it with --enable-memory-saver"
    unknown = [tag for tag in request.tags or () if tag not in MEMORY_KINDS]
    return f"tags: {unknown[0]!r:.60} is none of {', '.join(MEMORY_KINDS)}" if unknown else None


def _profile(request: Any, state: ServerState) -> str | None:
    if getattr(request.req_type, "name", "") != "START_PROFILE":
        return None
    return _profile_numbers(request) or _profile_activities(request.activities or (), state) or _profile_files(request)


def _profile_numbers(request: Any) -> str | None:
    for name, least in (("num_steps", 1), ("start_step", 0)):
        value = getattr(request, name)
        if value is not None and value < least:
            return f"{name}: {value} is below {least}"
    return None


def _profile_activities(activities: Any, state: ServerState) -> str | None:
    for activity in activities:
        if activity not in ACTIVITIES:
            return f"activities: {activity!r:.60} is none of {', '.join(ACTIVITIES)}"
        if activity in ON_A_CARD and not state.has_card:
            return f"activities: {activity} needs a CUDA GPU"
        if activity == "RPD" and importlib.util.find_spec("rpdTracerControl") is None:
            return "activities: RPD needs the module rpdTracerControl, which is not installed"
    return None


def _profile_files(request: Any) -> str | None:
    for name in ("profile_id", "profile_prefix"):
        if os.sep in (getattr(request, name) or ""):
            return f"{name}: {getattr(request, name)!r:.60} is no part of a file's name"
    folder = os.path.expanduser(request.output_dir or os.environ.get("SGLANG_TORCH_PROFILER_DIR", "/tmp"))
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        return f"output_dir: {folder!r:.60} cannot be made: {error.strerror}"
    return None if os.access(folder, os.W_OK) else f"output_dir: {folder!r:.60} is not writable"


def _join(request: Any, _state: ServerState) -> str | None:
    """Joining a group waits for the other members, and no step runs meanwhile; the patch admin_routes limits that time."""
    if request.world_size < 1 or request.rank_offset < 0 or not 0 < request.master_port < 65536 or not request.group_name:
        return "world_size at least 1, rank_offset at least 0, master_port from 1 to 65535 and a group_name are needed"
    return None


CHECKS: Mapping[str, Callable[[Any, ServerState], str | None]] = {
    "SlowDownReqInput": _slow_down,
    "ExpertDistributionReq": _experts,
    "ReleaseMemoryOccupationReqInput": _release,
    "ResumeMemoryOccupationReqInput": _resume,
    "ProfileReq": _profile,
    "InitWeightsUpdateGroupReqInput": _join,
}
"""Checkers by the name of SGLang's request type."""
LEVELS = range(4)
FORMATS = ("text", "json")
LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


def logging_refusal(request: Any) -> str | None:
    """Why logging options are refused, or None. Stock accepts wrong options, and then every request fails."""
    if request.log_requests_level is not None and request.log_requests_level not in LEVELS:
        return f"log_requests_level: {request.log_requests_level} is not from 0 to {LEVELS[-1]}"
    if request.log_requests_format is not None and request.log_requests_format not in FORMATS:
        return f"log_requests_format: {request.log_requests_format!r:.60} is none of {', '.join(FORMATS)}"
    if request.log_level is not None and request.log_level.upper() not in LOG_LEVELS:
        return f"log_level: {request.log_level!r:.60} is none of {', '.join(LOG_LEVELS)}"
    if request.dump_requests_threshold is not None and request.dump_requests_threshold < 1:
        return f"dump_requests_threshold: {request.dump_requests_threshold} is below 1"
    return None
