"""Verify steps that need tokens only: the whole batch is greedy and nothing changes its logits.

SGLang's ``eagle_sample`` computes the largest logit of each row itself. Where the tokens are known already, it gets a column of zeros in
place of logits, and the tokens replace its own result in the calls that it makes (``target_predict``).
"""

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import torch

from sglang_gemma4.models.layers import verify_head
from sglang_gemma4.speculative.verify_penalties import COUNTED

_tokens: ContextVar[torch.Tensor | None] = ContextVar("verify_tokens", default=None)


def suffice(batch: Any) -> bool:
    """Whether a batch needs only the largest logit of each row: no sampling, no penalties, biases, grammars or watermarks, no
    log-probabilities."""
    if batch.has_grammar or batch.return_logprob or torch.version.hip is not None:
        return False
    info = batch.sampling_info
    changed = (info.acc_additive_penalties, info.acc_scaling_penalties, info.logit_bias, getattr(info, COUNTED, None))
    return bool(info.is_all_greedy) and not info.has_watermark_candidates and all(change is None for change in changed)


def largest(logits: torch.Tensor) -> torch.Tensor:
    """``[rows]`` int64: the token with the largest logit of each row of logits, or of hidden states whose LM head is deferred."""
    head = verify_head.current()
    return head.tokens(logits) if head is not None and head.waits(logits) else torch.argmax(logits, dim=-1)


def sample(original: Callable[..., Any], verify_input: Any, batch: Any, logits_output: Any, *args: Any, **kwargs: Any) -> Any:
    """Around ``eagle_sample``, outside of what changes logits there: a verify step's LM head may be deferred (``verify_head``)."""
    head = verify_head.current()
    if head is None or batch.forward_mode.is_idle() or not head.waits(logits_output.next_token_logits):
        return original(verify_input, batch, logits_output, *args, **kwargs)
    hidden_states = logits_output.next_token_logits
    if not suffice(batch):
        logits_output.next_token_logits = head.logits(hidden_states)
        return original(verify_input, batch, logits_output, *args, **kwargs)
    logits_output.next_token_logits = hidden_states.new_zeros((hidden_states.shape[0], 1), dtype=torch.float32)
    token = _tokens.set(head.tokens(hidden_states).view(len(batch.seq_lens), -1))
    try:
        return original(verify_input, batch, logits_output, *args, **kwargs)
    finally:
        _tokens.reset(token)
        logits_output.next_token_logits = None  # a reader must not take the zeros for logits


def forget(logits_output: Any) -> None:
    """Once tokens were taken: a reader must not take a deferred head's hidden states for logits."""
    head = verify_head.current()
    if head is not None and head.waits(logits_output.next_token_logits):
        logits_output.next_token_logits = None


def with_tokens(handed_on: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function that ``eagle_sample`` calls with ``target_predict`` ``[requests, nodes]``: it gets the tokens of :func:`sample`."""

    def given(*args: Any, **kwargs: Any) -> Any:
        tokens = _tokens.get()
        if tokens is not None:
            kwargs["target_predict"] = tokens
        return handed_on(*args, **kwargs)

    return given


def simulate(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Around ``generate_simulated_accept_index``, of SGLANG_SIMULATE_ACC_LEN."""
    return with_tokens(original)(*args, **kwargs)
