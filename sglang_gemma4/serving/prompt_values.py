"""Checks a request's prompts: text, token ids or embeddings, one prompt or a batch."""

import array
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sglang_gemma4.serving.request_limits import LARGEST_EMBEDDING, Limits
from sglang_gemma4.serving.value_kinds import is_integer, is_number, refuse

_LISTS = (list, tuple, array.array)


@dataclass(frozen=True)
class Shape:
    """Number of prompts in a request, and whether they are a list."""

    prompts: int
    is_list: bool


def judge_prompts(request: Any, limits: Limits) -> Shape:
    """Check the prompts of a request.

    Raises:
        ValueError: there is no prompt, one is empty or of a wrong type, an id is outside the vocabulary, or an embedding has a wrong width.
    """
    if request.text is not None:
        return _judge_texts(request.text)
    if request.input_ids is not None:
        return _judge_ids(request.input_ids, limits, bool((request.session_params or {}).get("id")))
    if request.input_embeds is not None:
        _judge_company(request, limits)
        return _judge_embeddings(request.input_embeds, limits)
    raise ValueError("there is no prompt: send text, input_ids or input_embeds")


def _judge_texts(given: Any) -> Shape:
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, (list, tuple)):
        refuse("text", given, "a string or a list of strings")
    for index, one in enumerate(texts):
        field = "text" if isinstance(given, str) else f"text[{index}]"
        if not isinstance(one, str):
            refuse(field, one, "a string")
    return Shape(len(texts), not isinstance(given, str))


def _judge_ids(given: Any, limits: Limits, may_be_empty: bool) -> Shape:
    if not isinstance(given, _LISTS):
        refuse("input_ids", given, "a list of token ids, or a list of such lists")
    if not any(isinstance(one, _LISTS) for one in given[:1]):
        if not len(given) and not may_be_empty:
            raise ValueError("input_ids: the prompt is empty; send at least one token id")
        judge_ids("input_ids", given, limits.vocabulary)
        return Shape(1, False)
    for index, one in enumerate(given):
        if not isinstance(one, _LISTS):
            refuse(f"input_ids[{index}]", one, "a list of token ids, as the first prompt is")
        if not len(one):
            raise ValueError(f"input_ids[{index}]: the prompt is empty; send at least one token id")
        judge_ids(f"input_ids[{index}]", one, limits.vocabulary)
    return Shape(len(given), True)


def judge_ids(field: str, ids: Sequence[Any], vocabulary: int) -> None:
    """Check token ids; thousands take microseconds.

    Raises:
        ValueError: an id is not an integer or is outside the vocabulary.
    """
    if set(map(type, ids)) <= {int} and (not ids or (min(ids) >= 0 and max(ids) < vocabulary)):
        return
    for index, one in enumerate(ids):
        if not is_integer(one) or not 0 <= one < vocabulary:
            refuse(f"{field}[{index}]", one, f"a token id from 0 to {vocabulary - 1}")


def _judge_company(request: Any, limits: Limits) -> None:
    """Check that nothing else in the request needs token ids, which embeddings replace."""
    if limits.layer_embeddings:
        raise ValueError("input_embeds: each layer of this model (E2B, E4B) embeds every token id itself, so it needs ids; send input_ids")
    for name in ("session_params", "image_data", "video_data", "audio_data"):
        if getattr(request, name, None):
            raise ValueError(f"{name}: cannot go with input_embeds, which have no token ids; send input_ids or text")


def _judge_embeddings(given: Any, limits: Limits) -> Shape:
    if not isinstance(given, _LISTS) or not len(given) or not isinstance(given[0], _LISTS) or not len(given[0]):
        refuse("input_embeds", given, "a list of embeddings, or a list of such lists")
    if not isinstance(given[0][0], _LISTS):
        _judge_prompt_embeddings("input_embeds", given, limits)
        return Shape(1, False)
    for index, one in enumerate(given):
        if not isinstance(one, _LISTS) or not len(one):
            refuse(f"input_embeds[{index}]", one, "a list of embeddings, as the first prompt is")
        _judge_prompt_embeddings(f"input_embeds[{index}]", one, limits)
    return Shape(len(given), True)


def _judge_prompt_embeddings(field: str, rows: Sequence[Any], limits: Limits) -> None:
    if len(rows) >= limits.context:
        raise ValueError(f"{field}: {len(rows)} embeddings are not fewer than {limits.context}, the context length of this server")
    for index, row in enumerate(rows):
        if not isinstance(row, _LISTS) or len(row) != limits.hidden:
            refuse(f"{field}[{index}]", row, f"an embedding of {limits.hidden} numbers, the model's hidden size")
        inside = set(map(type, row)) <= {float, int} and min(row) >= -LARGEST_EMBEDDING and max(row) <= LARGEST_EMBEDDING
        if not inside or math.isnan(sum(row)):
            _refuse_number(f"{field}[{index}]", row)


def _refuse_number(field: str, row: Sequence[Any]) -> None:
    for index, one in enumerate(row):
        if not is_number(one) or not -LARGEST_EMBEDDING <= one <= LARGEST_EMBEDDING:
            refuse(f"{field}[{index}]", one, f"a number from {-LARGEST_EMBEDDING:g} to {LARGEST_EMBEDDING:g}")
