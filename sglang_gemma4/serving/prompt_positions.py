"""Checks what a request asks for at positions of its prompt, once the prompt's length is known."""

from collections.abc import Sequence
from typing import Any

from sglang_gemma4.serving.request_limits import LOGPROBS, LOGPROBS_EACH, Limits
from sglang_gemma4.serving.value_kinds import is_integer, refuse

UNLESS_ASKED = 128
"""SGLang's max_new_tokens for a request that has none; an explicit None is the rest of the context."""


def judge(request: Any, ids: Sequence[int] | None, limits: Limits) -> None:
    """Check one prompt's request for generation.

    Args:
        ids: the prompt's token ids, including media placeholders; None if the prompt comes as embeddings.

    Raises:
        ValueError: a position is outside the prompt, or more log-probabilities are asked for than one answer may carry.
    """
    tokens = len(ids) if ids is not None else len(request.input_embeds or ())
    start = getattr(request, "logprob_start_len", None)
    if request.return_logprob and start is not None and start > tokens:
        refuse("logprob_start_len", start, f"at most {tokens}, the tokens of the prompt")
    _judge_amount(request, tokens, limits)
    overrides = getattr(request, "positional_embed_overrides", None)
    if overrides is not None:
        _judge_overrides(overrides, tokens, limits)


def _judge_amount(request: Any, tokens: int, limits: Limits) -> None:
    if not request.return_logprob:
        return
    each = 1 + (request.top_logprobs_num or 0) + len(request.token_ids_logprob or ())
    start = request.logprob_start_len
    asked = request.sampling_params.get("max_new_tokens", UNLESS_ASKED)
    answer = limits.context - tokens if asked is None else min(asked, limits.context)
    positions = answer + (tokens - start if start is not None and start >= 0 else 0)
    most = max(LOGPROBS, LOGPROBS_EACH * limits.context)
    if positions * each > most:
        raise ValueError(
            f"top_logprobs_num (top_logprobs, logprobs): {each} log-probabilities at up to {positions} positions are more than the "
            f"{most} that one answer may carry; ask for fewer, or give a smaller max_new_tokens (max_tokens)"
        )


def _judge_overrides(overrides: Any, tokens: int, limits: Limits) -> None:
    if not hasattr(overrides, "positions") or not hasattr(overrides, "embeds"):
        refuse("positional_embed_overrides", overrides, "a PositionalEmbeds")
    for position in overrides.positions:
        if not is_integer(position) or not 0 <= position < tokens:
            refuse("positional_embed_overrides' position", position, f"from 0 to {tokens - 1}, within the prompt")
    shape = getattr(overrides.embeds, "shape", None)
    if shape is not None and tuple(shape) != (len(overrides.positions), limits.hidden):
        refuse(
            "positional_embed_overrides", tuple(shape), f"of shape ({len(overrides.positions)}, {limits.hidden}), the model's hidden size"
        )
