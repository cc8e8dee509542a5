"""Groups for weight updates: the scheduler, which answers nothing meanwhile, waits one minute for the other members instead of 30.

One case has no limit: if a process listens at the master's port and sends nothing, PyTorch waits for its first answer for ever.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

SECONDS_TO_MEET = 60.0


def join_in_time(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Around ``init_custom_process_group``: raises if its members do not meet in time; the group's own timeout is unchanged."""
    from torch.distributed import distributed_c10d

    usual: Any = distributed_c10d.rendezvous

    def meet(*meeting: Any, **given: Any) -> Any:
        return usual(*meeting, **{**given, "timeout": timedelta(seconds=SECONDS_TO_MEET)})

    distributed_c10d.rendezvous = meet
    try:
        return original(*args, **kwargs)
    finally:
        distributed_c10d.rendezvous = usual
