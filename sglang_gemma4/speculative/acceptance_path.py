"""From the target's logits to accepted tokens."""

from collections.abc import Callable
from typing import Any


def softmax() -> Callable[..., Any]:
    """The softmax under the name by which ``eagle_sample`` calls it."""
    from sglang.kernels.ops.sampling import softmax as stock

    from sglang_gemma4.speculative import verify_cuts

    return verify_cuts.cut_softmax(stock)
