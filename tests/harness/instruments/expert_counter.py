"""Say that our experts' kernels ran: ``TEST_INSTRUMENTS=expert_counter:install``."""

import functools
from typing import Any


def install() -> None:
    """One line on the log for the first batch of each layer and kernel, and of each router that chooses."""
    from sglang_gemma4.models.layers.expert_layers import ExpertKernels
    from sglang_gemma4.models.layers.router_choice import RouterChoice

    multiply: Any = RouterChoice.apply

    @functools.wraps(multiply)
    def chosen(self: Any, *args: Any, **kwargs: Any) -> Any:
        logits = multiply(self, *args, **kwargs)
        if self.steps == 1:
            self.steps += 1
            print(f"A ROUTER chose for {logits.shape[0]} tokens", flush=True)
        return logits

    RouterChoice.apply = chosen  # type: ignore[method-assign]
    original: Any = ExpertKernels.__call__

    @functools.wraps(original)
    def counted(self: Any, dispatch_output: Any) -> Any:
        steps = self.steps
        result = original(self, dispatch_output)
        if steps == 0 and self.steps == 1:
            routed = " over the routing's blocks" if getattr(self, "taken", 0) else ""
            print(f"EXPERTS by {self.name}, {dispatch_output.hidden_states.shape[0]} tokens{routed}", flush=True)
        return result

    ExpertKernels.__call__ = counted  # type: ignore[method-assign]


def prefill_from_forty_tokens() -> None:
    """Treat chunks as large from 40 tokens on: an interpreted program takes milliseconds."""
    from sglang_gemma4.models.layers import expert_layers

    expert_layers.PREFILL_LEAST = 40


def prefill_of_groups_from_forty_tokens() -> None:
    """The same for 4-bit experts; each workspace for dequantised weights is a line in the log."""
    from sglang_gemma4.models.layers import expert_layers

    layers: Any = expert_layers
    layers.PREFILL_LEAST_OF_GROUPED = 40
    original, seen = layers.shared_room, set[int]()

    def announced(whose: str, numbers: int, *given: Any) -> Any:
        room = original(whose, numbers, *given)
        if room.data_ptr() not in seen:
            seen.add(room.data_ptr())
            print(f"A ROOM of {numbers} numbers", flush=True)
        return room

    layers.shared_room = announced
