"""Say what the target's waiting head was asked for: ``TEST_INSTRUMENTS=verify_head_counter:install``."""

import functools
from typing import Any


def install() -> None:
    """One line on the log for each verify step, and one where logits come from the step itself."""
    from sglang_gemma4.models.layers.verify_head import VerifyHead

    for name in ("tokens", "logits"):
        _say(VerifyHead, name)


def _say(kind: Any, name: str) -> None:
    original = getattr(kind, name)

    @functools.wraps(original)
    def told(self: Any, hidden_states: Any) -> Any:
        print(f"VERIFY asks for {name} of {hidden_states.shape[0]} rows", flush=True)
        return original(self, hidden_states)

    setattr(kind, name, told)
