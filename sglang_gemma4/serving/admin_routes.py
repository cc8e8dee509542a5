"""Hooks of administrative routes: a request that cannot be done is answered with status 400, and never ends or stops the server."""

from collections.abc import Callable
from typing import Any

_released: set[str] = set()
"""Kinds of memory that are released, as requested through this process."""


def guard_handlers(_result: None, scheduler: Any) -> None:
    """After ``Scheduler.init_request_dispatcher``: guard every administrative handler."""
    from sglang_gemma4.serving import control_guard

    control_guard.guard_all(scheduler._request_dispatcher._mapping)


def _state() -> Any:
    import torch
    from sglang.srt.runtime_context import get_device, get_exec, get_server_args

    from sglang_gemma4.serving.control_values import ServerState

    return ServerState(
        watchdog_seconds=get_device().watchdog_timeout,
        memory_saver=bool(get_server_args().enable_memory_saver),
        records_experts=get_exec().moe.expert_distribution_recorder_mode is not None,
        has_card=torch.cuda.is_available(),
        released=frozenset(_released),
    )


async def ask_scheduler(original: Callable[..., Any], communicator: Any, obj: Any) -> Any:
    """Around ``FanOutCommunicator.__call__``, through which administrative requests and their answers go.

    Raises:
        RefusedError: the request is refused, or has failed in the scheduler; with status 400.
    """
    from sglang_gemma4.serving import client_errors, control_guard, control_values
    from sglang_gemma4.serving.control_guard import RefusedError

    refusal = control_values.refusal(obj, _state())
    if refusal is not None:
        raise RefusedError(400, refusal)
    client_errors.mark_sent()
    answers = await original(communicator, obj)
    control_guard.raise_failures(answers)
    _note_memory(obj)
    return answers


def _note_memory(obj: Any) -> None:
    from sglang_gemma4.serving.control_values import MEMORY_KINDS

    name, kinds = type(obj).__name__, getattr(obj, "tags", None) or MEMORY_KINDS
    if name == "ReleaseMemoryOccupationReqInput":
        _released.update(kinds)
    elif name == "ResumeMemoryOccupationReqInput":
        _released.difference_update(kinds)


def refuse_without_memory(_manager: Any, _obj: Any, _request: Any = None) -> None:
    """Before ``TokenizerManager.generate_request``: a forward over released memory would end the server.

    Raises:
        RefusedError: memory is released; with status 503.
    """
    if _released:
        from sglang_gemma4.serving.control_guard import RefusedError

        raise RefusedError(503, f"{', '.join(sorted(_released))} released by /release_memory_occupation; resume first")


async def profile(original: Callable[..., Any], manager: Any, request: Any) -> Any:
    """Around ``_execute_profile``: starting a profile twice, or stopping one that was not started, is the caller's error.

    Raises:
        RefusedError: with status 400 and why.
    """
    from sglang_gemma4.serving.control_guard import RefusedError

    try:
        return await original(manager, request)
    except RuntimeError as error:
        raise RefusedError(400, str(error)) from error


def judge_logging(_manager: Any, obj: Any) -> None:
    """Before ``TokenizerManager.configure_logging``: check the values.
    Raises:
        RefusedError: with status 400 and why.
    """
    from sglang_gemma4.serving.control_guard import RefusedError
    from sglang_gemma4.serving.control_values import logging_refusal

    refusal = logging_refusal(obj)
    if refusal is not None:
        raise RefusedError(400, refusal)


def warn_if_open(*_args: Any, **_kwargs: Any) -> None:
    """Before the HTTP server starts: warn if anyone who reaches its port can use every route."""
    import logging

    from sglang.srt.runtime_context import get_serving

    from sglang_gemma4.diagnostics import open_server

    serving = get_serving()
    said = open_server.reason_against(serving.host, serving.port, bool(serving.api_key), _enforced(serving))
    if said is not None:
        logging.getLogger(__name__).warning("sglang-gemma4: %s", said)


def _enforced(serving: Any) -> bool:
    """Whether SGLang checks --admin-api-key: it does not with several tokenizer processes."""
    return bool(serving.admin_api_key) and serving.tokenizer_worker_num == 1
