"""Where an answer ends within the tokens that one verify step accepted."""

from collections.abc import Callable
from typing import Any


def token_by_token(original: Callable[[Any, int], None], req: Any, new_accepted_len: int = 1) -> None:
    """Around ``Req.update_finish_state``: its conditions are checked after each token of an accepted run, as plain decoding does."""
    if new_accepted_len > 1 and order_matters(req):
        ask_after_each(original, req, new_accepted_len)
    else:
        original(req, new_accepted_len)


def order_matters(req: Any) -> bool:
    """Whether one check for all accepted tokens may end the answer at the wrong place: only with stop strings or patterns."""
    sampling = req.sampling_params
    return bool(sampling.stop_strs or sampling.stop_regex_strs) and not (req.finished() or req.to_finish)


def ask_after_each(update: Callable[[Any, int], None], req: Any, accepted: int) -> None:
    """Call ``update(req, 1)`` after each of the last ``accepted`` tokens of ``req.output_ids``, until one ends the request.

    The request keeps all its tokens, as SGLang expects; ``finished_len`` says how many belong to the answer. Its grammar has already
    consumed all of them, so it is checked at the last token only.
    """
    output, grammar = req.output_ids, req.grammar
    start = len(output) - accepted
    run = output[start:]
    del output[start:]
    try:
        for place, token in enumerate(run, 1):
            output.append(token)
            req.grammar = grammar if place == accepted else None
            update(req, 1)
            if req.finished():
                if req.finished_len is None:
                    req.finished_len = len(output)
                break
    finally:
        req.grammar = grammar
        output.extend(run[len(output) - start :])
