"""The MTP draft with topk 1 is a chain of maxima, and the host waits for nothing in a step."""

from collections.abc import Callable, Mapping
from typing import Any

from sglang_gemma4.patching import switches, takes

CHAINS = "_sglang_gemma4_chains"


TOKENS_ONLY = "_sglang_gemma4_tokens_only"


def chain_of(worker: Any, rows: int) -> Any:
    """The worker's constant tensors for at least ``rows`` requests, or None where its drafts are trees."""
    from sglang_gemma4.speculative.chain import Chain

    if not drafts_chains(worker):
        takes(
            "frozen_chain", f"--speculative-eagle-topk {worker.topk}, {worker.speculative_num_draft_tokens} draft tokens: drafts are trees"
        )
        return None
    takes("frozen_chain", None)
    steps = worker.speculative_num_steps  # adaptive_draft changes it between batches; the graphs of each keep the chain they captured
    chains = worker.__dict__.setdefault(CHAINS, {})
    if steps not in chains or chains[steps].order.shape[0] < rows:
        chains[steps] = Chain.make(rows, steps, worker.device)
    return chains[steps]


def drafts_chains(worker: Any) -> bool:
    """Whether a worker drafts one token after the other, not trees."""
    return bool(worker.topk == 1 and worker.speculative_num_draft_tokens == worker.speculative_num_steps + 1)


def make_chain(worker: Any) -> None:
    """Allocate the chain's constant tensors, before anything is captured. A chain asks its draft for tokens only."""
    if chain_of(worker, worker.req_to_token_pool.size + 1) is not None:
        setattr(worker.draft_model_runner.model, TOKENS_ONLY, True)


def centroid_head(original: Callable[[Any, Any], Any], model: Any, hidden_states: Any) -> Any:
    """Around ``_apply_centroid_masking`` (E2B, E4B): return the token itself where no one reads the logits."""
    if not getattr(model, TOKENS_ONLY, False):
        return original(model, hidden_states)
    from sglang_gemma4.speculative import chain

    return chain.centroid_tokens(model, hidden_states)


def draft(original: Callable[[Any, Any], Any], worker: Any, batch: Any) -> Any:
    """Around ``draft``."""
    if batch.forward_mode.is_idle() or worker.speculative_num_steps == 0 or chain_of(worker, len(batch.seq_lens)) is None:
        return original(worker, batch)
    from sglang_gemma4.speculative import chain

    return chain.draft(worker, batch)


def draft_forward(original: Callable[[Any, Any], Any], worker: Any, forward_batch: Any) -> Any:
    """Around ``draft_forward``, which is also what the draft's graph captures."""
    constant = chain_of(worker, forward_batch.batch_size)
    if constant is None:
        return original(worker, forward_batch)
    from sglang_gemma4.speculative import chain

    return chain.draft_forward(worker, forward_batch, constant)


def seed_after_verify(original: Callable[[Any, Any, Any], None], worker: Any, batch: Any, result: Any) -> None:
    """Around ``_draft_extend_for_decode``: the next draft starts from each request's last accepted token."""
    # After 0 steps (an adaptive length's plain decoding) each request has one row. The adaptive worker, whose method `original` is then,
    # knows that; its accept lengths lie on the host.
    plain = batch.forward_mode.is_idle() or worker.speculative_num_steps == 0
    constant = None if plain else chain_of(worker, len(batch.seq_lens))
    if constant is None:
        original(worker, batch, result)
        return
    from sglang_gemma4.speculative import chain

    last = chain.last_accepted(constant, result.logits_output.hidden_states, result.accept_lens)
    result.next_draft_input = chain.seed(worker, batch, result.next_draft_input.bonus_tokens, last)


def select_last(original: Callable[[Any, Any, Any], Any], worker: Any, batch: Any, hidden: Any) -> Any:
    """Around ``_select_last_extend_hidden``: stock copies the lengths from pageable memory, which waits for the device."""
    if hidden.shape[0] == batch.batch_size():
        return original(worker, batch, hidden)
    from itertools import accumulate

    import torch
    from sglang.srt.utils.common import async_h2d

    return hidden[async_h2d([end - 1 for end in accumulate(batch.extend_lens)], dtype=torch.int64, device=hidden.device)]


def not_under_v1(environ: Mapping[str, str]) -> str | None:
    """Why no chain is used under the worker v1: it is the reference that a chain is checked against."""
    return None if switches.is_on(switches.MTP_V2, environ) else f"{switches.MTP_V2}=0 selects the worker v1, which has a loop of its own"
