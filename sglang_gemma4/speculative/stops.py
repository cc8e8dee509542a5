"""Where an answer ends within the tokens that one verify step accepted."""

from collections.abc import Callable
from typing import Any


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
