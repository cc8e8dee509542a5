"""What a greedy verify step of chains accepts and hands to the next step, by one launch
(``kernels/accept_chain.py``).

SGLang still calls its functions in the same places. :func:`accept` answers for ``eagle_sample``. The tensors that it
returns carry the launch's other results to the later functions that would compute the same: :func:`commit`,
:func:`last_hidden`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from sglang_gemma4.kernels.accept_chain import Relay, accept_chain
from sglang_gemma4.kernels.card import reason_against_device
from sglang_gemma4.patching import takes
from sglang_gemma4.speculative import verify_tokens

NAME = "chain_acceptance"


WRITTEN, HIDDEN = "_sglang_gemma4_written", "_sglang_gemma4_hidden"
"""What the launch's ``predict`` and ``lengths`` carry: :class:`Written`, and the last accepted rows' hidden states."""


@dataclass(frozen=True)
class Written:
    """What the next step starts from, ``[requests]`` each: cached tokens and last token. ``published`` is SGLang's relay, if written to."""

    new_lengths: torch.Tensor
    last: torch.Tensor
    published: Any


@dataclass
class _Process:
    """The overlapped scheduler's buffers for the next step, and SGLang's own object for them; None in a synchronous process."""

    relay: Relay | None = None
    published: Any = None


_here = _Process()


def relay_of(_result: None, future_map: Any, *_args: Any, **_named: Any) -> None:
    """After ``FutureMap.__init__``: its buffers may be written by the launch, as SGLang's DSpark graphs do.

    ``publish`` and ``stash`` skip what ``published`` says has been written.
    """
    from sglang.srt.managers.overlap_utils import FutureRelayBuffers

    _here.relay = _here.published = None
    if future_map._relay is not None or not future_map.spec_algo.is_frozen_kv_mtp():
        return
    relay = object.__new__(FutureRelayBuffers)
    relay.new_seq_lens, relay.output_tokens = future_map.new_seq_lens_buf, future_map.output_tokens_buf
    relay.adopted, relay.published_seq_lens, relay.published_bonus = True, None, None
    future_map._relay = relay
    _here.relay, _here.published = Relay(relay.new_seq_lens, relay.output_tokens), relay


def accept(verify_input: Any, batch: Any, logits_output: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None:
    """What ``eagle_sample`` would return, or None: logits are changed or sampled from, drafts are a tree, or the drafter is not MTP's
    (with EAGLE-3 the launch has not run on a GPU).
    """
    if batch.forward_mode.is_idle() or not batch.spec_algorithm.is_frozen_kv_mtp():
        return None
    if not (verify_tokens.suffice(batch) and _is_chain(verify_input, logits_output)):
        return None
    if not takes(NAME, reason_against_device(verify_input.draft_token.device), "SGLang's launches say what is accepted"):
        return None
    simulated = _simulated(verify_input)
    if simulated is None:
        return None
    from sglang.srt.utils.async_probe import sanitize_nan_logits

    logits = logits_output.next_token_logits
    sanitize_nan_logits(logits, "verify: target model logits")
    relay = _here.relay if batch.enable_overlap else None
    found = accept_chain(
        verify_input.draft_token, torch.argmax(logits, dim=-1), batch.seq_lens, logits_output.hidden_states, relay,
        batch.req_pool_indices if relay is not None else None, simulated,
    )  # fmt: skip
    setattr(found.predict, WRITTEN, Written(found.new_lengths, found.last, _here.published if relay is not None else None))
    setattr(found.lengths, HIDDEN, found.hidden)
    return found.predict, found.lengths, found.index


def _is_chain(verify_input: Any, logits_output: Any) -> bool:
    """Whether each draft follows the one before, and the rows of hidden states are those of the drafts."""
    hidden, nodes = logits_output.hidden_states, verify_input.draft_token_num
    return (
        verify_input.tree_topk == 1
        and verify_input.max_tree_depth == nodes
        and hidden is not None
        and hidden.dim() == 2
        and hidden.shape[0] == verify_input.draft_token.numel()
    )


def _simulated(verify_input: Any) -> int | None:
    """Rows to accept by ``SGLANG_SIMULATE_ACC_LEN``, 0 without it; None where its tokens are made up."""
    from sglang.srt.speculative import spec_utils

    if spec_utils.SIMULATE_ACC_LEN <= 0:
        return 0
    if spec_utils.SIMULATE_ACC_TOKEN_MODE != "real-draft-token":
        return None
    depth: int = verify_input.max_tree_depth
    return int(spec_utils.sample_simulated_acc_len(spec_utils.SIMULATE_ACC_LEN, spec_utils.SIMULATE_ACC_METHOD, depth))


def commit(original: Callable[..., Any], predict: torch.Tensor, *args: Any, num_draft_tokens: int = 0, **named: Any) -> Any:
    """Around ``prepare_verify_commit_outputs``: what it would compute from the launch's ``predict``.

    The steps for mamba layers and for an assistant with its own KV are left out: a Gemma 4 has neither.
    """
    written: Written | None = getattr(predict, WRITTEN, None)
    if written is None:
        return original(predict, *args, num_draft_tokens=num_draft_tokens, **named)
    if written.published is not None:
        written.published.published_seq_lens, written.published.published_bonus = written.new_lengths, written.last
    if num_draft_tokens:
        return written.new_lengths, written.last, (None, None), None
    return written.new_lengths, written.last


def last_hidden(lengths: torch.Tensor) -> torch.Tensor | None:
    """``[requests, hidden]``: the last accepted row of each request, if the launch wrote these ``lengths``."""
    hidden: torch.Tensor | None = getattr(lengths, HIDDEN, None)
    return hidden
