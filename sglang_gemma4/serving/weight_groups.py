"""Groups for weight updates: the scheduler, which answers nothing meanwhile, waits for the others for a minute and not for half an hour.

What is not bounded is a process that listens at the master's port and says nothing: PyTorch waits for its first answer without a limit.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

SECONDS_TO_MEET = 60.0


def join_in_time(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Around ``init_custom_process_group``: its members meet in time, or it raises; the group's own timeout stays as it was given."""
    from torch.distributed import distributed_c10d

    usual: Any = distributed_c10d.rendezvous

    def meet(*meeting: Any, **given: Any) -> Any:
        return usual(*meeting, **{**given, "timeout": timedelta(seconds=SECONDS_TO_MEET)})

    distributed_c10d.rendezvous = meet
    try:
        return original(*args, **kwargs)
    finally:
        distributed_c10d.rendezvous = usual
