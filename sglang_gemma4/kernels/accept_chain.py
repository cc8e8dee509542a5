"""Accept a chain of drafts after a verify step, and prepare the next step, in one launch.

SGLang uses about ten launches: two fills, the walk down the tree, a sum, the committed tokens, the last accepted row
of hidden states, and the writes of lengths and tokens for the next step (``speculative/eagle_utils.py``,
``eagle_worker_common.py``, ``managers/overlap_utils.py``).
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton
import triton.language as tl

BLOCK = 1024
"""Elements of a hidden state that a program copies."""


class Accepted(NamedTuple):
    """Result of a verify step with ``nodes`` rows per request, the first of which is the last committed token.

    Attributes:
        predict: ``[requests · nodes]`` int32, the token after each accepted row, and 0 in the other rows.
        lengths: ``[requests]`` int32, number of accepted rows, 1 to ``nodes``.
        index: ``[requests, nodes]`` int32, flat numbers of the accepted rows in order, then -1.
        new_lengths: ``[requests]`` int64, cached tokens after this step.
        last: ``[requests]`` int64, the newest token, whose key is not cached yet.
        hidden: ``[requests, hidden]``, the last accepted row's hidden state.
    """

    predict: torch.Tensor
    lengths: torch.Tensor
    index: torch.Tensor
    new_lengths: torch.Tensor
    last: torch.Tensor
    hidden: torch.Tensor


@dataclass(frozen=True)
class Relay:
    """Lengths and last tokens that the next step reads, indexed by a request's place; both ``[places]`` int64."""

    lengths: torch.Tensor
    tokens: torch.Tensor


def accept_chain(
    drafted: torch.Tensor,
    targets: torch.Tensor,
    seq_lens: torch.Tensor,
    hidden: torch.Tensor,
    relay: Relay | None = None,
    places: torch.Tensor | None = None,
    simulated: int = 0,
) -> Accepted:
    """Accept each request's drafts up to the first that is not the target's token.

    Args:
        drafted: ``[requests · nodes]`` int64, each request's last committed token and its drafts.
        targets: ``[requests, nodes]`` or flat, int64: the target's token after each row.
        seq_lens: ``[requests]`` int64, cached tokens before this step.
        hidden: ``[requests · nodes, hidden]``, each row contiguous.
        relay: written at each request's ``places`` ``[requests]`` int64. Give both or neither.
        simulated: accept this many rows of each request, whatever the tokens are; 0: accept by the tokens.

    Raises:
        ValueError: shapes do not match, a tensor is not contiguous, or only one of ``relay`` and ``places`` is given.
    """
    requests = seq_lens.numel()
    rows = drafted.numel()
    nodes = rows // max(requests, 1)
    if requests < 1 or nodes * requests != rows or targets.numel() != rows or hidden.shape[0] != rows or not 0 <= simulated <= nodes:
        raise ValueError(
            f"{rows} drafted tokens, {targets.numel()} targets, hidden states of {tuple(hidden.shape)} and {simulated} simulated rows "
            f"for {requests} requests"
        )
    if not (drafted.is_contiguous() and targets.is_contiguous() and seq_lens.is_contiguous() and hidden.stride(1) == 1):
        raise ValueError("tokens, lengths and each row of hidden states must lie side by side")
    if (relay is None) != (places is None):
        raise ValueError("a relay wants places, and places a relay")
    device, width = seq_lens.device, hidden.shape[1]
    found = Accepted(
        predict=torch.empty(rows, dtype=torch.int32, device=device),
        lengths=torch.empty(requests, dtype=torch.int32, device=device),
        index=torch.empty((requests, nodes), dtype=torch.int32, device=device),
        new_lengths=torch.empty(requests, dtype=torch.int64, device=device),
        last=torch.empty(requests, dtype=torch.int64, device=device),
        hidden=torch.empty((requests, width), dtype=hidden.dtype, device=device),
    )
    _accept_chain_kernel[(requests, triton.cdiv(width, BLOCK))](
        drafted,
        targets,
        seq_lens,
        hidden,
        hidden.stride(0),
        width,
        places if places is not None else seq_lens,
        relay.lengths if relay is not None else found.new_lengths,
        relay.tokens if relay is not None else found.last,
        *found,
        simulated,
        NODES=nodes,
        RELAYED=relay is not None,
        BLOCK=BLOCK,
        num_warps=4,
    )
    return found


@triton.jit(do_not_specialize=["simulated"])
def _accept_chain_kernel(  # type: ignore[no-untyped-def]
    drafted,
    targets,
    seq_lens,
    hidden,
    hidden_stride,
    width,
    places,
    relayed_lengths,
    relayed_tokens,
    predict,
    lengths,
    index,
    new_lengths,
    last,
    last_hidden,
    simulated,
    NODES: tl.constexpr,
    RELAYED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    request = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    first = request * NODES
    accepted = 0  # drafts
    going = 1
    for node in tl.static_range(1, NODES):
        same = tl.load(drafted + first + node) == tl.load(targets + first + node - 1)
        going = going & same.to(tl.int32)
        accepted += going
    accepted = tl.where(simulated > 0, simulated - 1, accepted)
    bonus = tl.load(targets + first + accepted)
    if part == 0:
        for node in tl.static_range(NODES):
            token = tl.load(drafted + first + node + 1) if node + 1 < NODES else bonus
            token = tl.where(node == accepted, bonus, token)
            tl.store(predict + first + node, tl.where(node <= accepted, token, 0).to(tl.int32))
            tl.store(index + first + node, tl.where(node <= accepted, first + node, -1).to(tl.int32))
        length = tl.load(seq_lens + request) + accepted + 1
        tl.store(lengths + request, accepted + 1)
        tl.store(new_lengths + request, length)
        tl.store(last + request, bonus)
        if RELAYED:
            place = tl.load(places + request)
            tl.store(relayed_lengths + place, length)
            tl.store(relayed_tokens + place, bonus)
    at = part * BLOCK + tl.arange(0, BLOCK)
    mine = at < width
    numbers = tl.load(hidden + (first + accepted) * hidden_stride + at, mine)
    tl.store(last_hidden + request * width + at, numbers, mine)
