"""Embeddings that a request brings instead of token ids: they overwrite rows of the model's own embedding output.

Stock passes them together with ids to a forward that accepts only one of the two, in bfloat16 whatever the model's
type. It also drops the rows of other requests' ids in the batch. Here the batch keeps its ids (a request with
embeddings has placeholders), and the embeddings overwrite their rows. So requests with ids and with embeddings run
together. A client sends what transformers takes as ``inputs_embeds``: already multiplied by the square root of the
hidden size.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

GIVEN = "given_embeddings"
"""Argument of the forward that holds (rows, their embeddings)."""


def rows_of(requests: Sequence[tuple[int, int, bool]]) -> list[int]:
    """Rows of a prefill that come from embeddings.

    Args:
        requests: for each request the number of tokens that have embeddings, the number of its tokens, and whether its
            prompt is embeddings.
    """
    rows: list[int] = []
    begin = 0
    for given, tokens, embedded in requests:
        if embedded:
            rows += range(begin, begin + given)
        begin += tokens
    return rows


def keep_rows(_result: None, batch: Any) -> None:
    """After ``ScheduleBatch.prepare_for_extend``: make embeddings rows to replace, like those at single positions."""
    if batch.input_embeds is None:
        return
    requests = [
        (_given(req, prefix), req.extend_len, req.input_embeds is not None)
        for req, prefix in zip(batch.reqs, batch.prefix_lens, strict=True)
    ]
    rows = torch.tensor(rows_of(requests), dtype=torch.long, device=batch.input_embeds.device)
    values = batch.input_embeds
    if batch.replace_embeds is not None:
        rows = torch.cat([rows, batch.replace_positions])
        values = torch.cat([values, batch.replace_embeds.to(values.dtype)])
    batch.replace_embeds, batch.replace_positions, batch.input_embeds = values, rows, None


def _given(req: Any, prefix: int) -> int:
    return 0 if req.input_embeds is None else len(req.input_embeds[prefix : prefix + req.extend_len])


def set_aside(original: Callable[..., dict[str, Any]], runner: Any, forward_batch: Any, *args: Any) -> dict[str, Any]:
    """Around ``ModelRunner._extend_forward_kwargs``: the forward gets ids, and the rows for :func:`write_over`."""
    rows, values = forward_batch.replace_positions, forward_batch.replace_embeds
    if values is None or rows is None or not type(runner.model).__name__.startswith("Gemma4"):
        found = original(runner, forward_batch, *args)
        if forward_batch.input_embeds is not None and "input_embeds" in found:  # a DFlash draft's block, which stock makes bfloat16
            found["input_embeds"] = forward_batch.input_embeds.to(runner.dtype)
        return found
    forward_batch.replace_embeds = None
    try:
        return {**original(runner, forward_batch, *args), GIVEN: (rows, values)}
    finally:
        forward_batch.replace_embeds = values


def write_over(original: Callable[..., Any], model: Any, input_ids: Any, *args: Any, **kwargs: Any) -> Any:
    """Around the forward of a Gemma 4 model: put the requests' embeddings into its embedding's output."""
    given = kwargs.pop(GIVEN, None)
    if given is None or input_ids is None:
        return original(model, input_ids, *args, **kwargs)
    with replaced(model.get_input_embeddings(), input_ids.shape[0], *given):
        return original(model, input_ids, *args, **kwargs)


@contextmanager
def replaced(embedding: torch.nn.Module, tokens: int, rows: torch.Tensor, values: torch.Tensor) -> Iterator[None]:
    """Inside, ``embedding``'s output for ``tokens`` ids, [tokens, hidden], has ``values``, [rows, hidden], at ``rows``.

    Outputs for other numbers of ids are left unchanged.
    """

    def write(_module: torch.nn.Module, _arguments: Any, output: torch.Tensor) -> torch.Tensor:
        if output.shape[0] == tokens:  # a call for an image's request alone has fewer
            output[rows] = values.to(output.dtype)
        return output

    handle = embedding.register_forward_hook(write)
    try:
        yield
    finally:
        handle.remove()
