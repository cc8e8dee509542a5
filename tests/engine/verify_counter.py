"""Say that the verify kernel ran: ``TEST_SABOTAGE=verify_counter:install``."""

import functools
from typing import Any


def install() -> None:
    """One line on the log for the first layer that the kernel took."""
    from sglang_gemma4.attention.verify import VerifyAttention

    original: Any = VerifyAttention.__call__

    @functools.wraps(original)
    def counted(self: Any, *args: Any, **kwargs: Any) -> bool:
        ran = bool(original(self, *args, **kwargs))
        if ran and self.steps == 1:
            print("VERIFIED a layer", flush=True)
        return ran

    VerifyAttention.__call__ = counted  # type: ignore[method-assign]
