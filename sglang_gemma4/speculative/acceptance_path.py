"""The path from the target's logits to accepted tokens, where SGLang calls ``eagle_sample``: our parts in one fixed
order."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from sglang_gemma4.patching import is_on


def sample(original: Callable[..., Any], verify_input: Any, batch: Any, logits_output: Any, *args: Any, **named: Any) -> Any:
    """Around ``eagle_sample``.

    Returns:
        As SGLang's: ``predict`` [requests · nodes], number of accepted rows of each request [requests], and which
            rows they are.
    """
    from sglang_gemma4.speculative import chain_acceptance, verify_cuts, verify_penalties

    # First: it takes greedy steps whose logits nothing changes, and leaves every other step to what follows.
    if is_on("chain_acceptance") and (found := chain_acceptance.accept(verify_input, batch, logits_output)) is not None:
        return found
    # Penalties before cuts: top-k, top-p and min-p judge penalised probabilities, as in plain sampling.
    runs = verify_penalties.penalise_step(verify_input, batch, logits_output) if is_on("verify_penalties") else None
    with verify_cuts.in_softmax(batch) if is_on("verify_cuts") else nullcontext():
        predict, lengths, index = original(verify_input, batch, logits_output, *args, **named)
    # Last: the next overlapped step penalises what this one accepted.
    if runs is not None:
        runs.keep(predict, lengths)
    return predict, lengths, index


def softmax() -> Callable[..., Any]:
    """The softmax under the name by which ``eagle_sample`` calls it."""
    from sglang.kernels.ops.sampling import softmax as stock

    from sglang_gemma4.speculative import verify_cuts

    return verify_cuts.cut_softmax(stock)
