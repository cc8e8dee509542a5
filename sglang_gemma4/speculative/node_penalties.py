"""Penalties at the nodes of a draft chain: each node counts its request's answer and the drafts before it, as plain decoding would.

The dense tables [requests, vocabulary] hold the counts at the step's launch. At a node only later tokens are missing: the drafts, and under
overlap scheduling the tokens that the previous step accepted, which the host does not know yet. The logits of those tokens are computed
separately and written over what the tables gave. Temporary tensors are at most of one node's size.
"""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Table:
    """One kind of penalty.

    Attributes:
        cumulated: [requests, vocabulary] penalties of the counted tokens.
        each: [requests, 1] penalty of one token; the neutral value for requests without this penalty.
    """

    cumulated: torch.Tensor
    each: torch.Tensor


@dataclass(frozen=True)
class Counted:
    """The penalties of a batch, and how many tokens of each answer are counted. None: no request has that kind.

    Attributes:
        frequency: subtracted from the logit once per occurrence of the token.
        presence: subtracted once.
        repetition: divides a positive logit and multiplies a negative one, once, after the others.
        least: [requests, 1] least number of tokens of an answer.
        ends: [requests, vocabulary] -inf at the tokens that end an answer, else 0.
        prompt: [requests] tokens of the prompt.
        output: [requests] tokens of the answer that are in the tables.
    """

    frequency: Table | None
    presence: Table | None
    repetition: Table | None
    least: torch.Tensor | None
    ends: torch.Tensor | None
    prompt: torch.Tensor
    output: torch.Tensor


def penalise(logits: torch.Tensor, chain: torch.Tensor, earlier: torch.Tensor, lengths: torch.Tensor, counted: Counted) -> None:
    """Apply the penalties to ``logits`` in place. Nothing is copied to the host.

    Args:
        logits: [requests, nodes, vocabulary] after each node.
        chain: [requests, nodes] int64: the last token of the answer, then the drafts.
        earlier: [requests, any number] int64: the tokens of the answer before the last, at least those that are not in the tables; others
            are not read.
        lengths: [requests] committed tokens without the last of the answer: prompt + answer - 1.
    """
    nodes, before = chain.shape[1], earlier.shape[1]
    answered = lengths - counted.prompt + 1
    tokens = torch.cat([earlier, chain], 1)
    place = torch.arange(-before, nodes, device=chain.device)  # 0: the last token of the answer; drafts are positive
    uncounted = place > (counted.output - answered)[:, None]
    precedes = place <= torch.arange(nodes, device=chain.device)[:, None]
    met = uncounted[:, None] & precedes  # [requests, nodes, tokens]
    same = tokens[:, :, None] == tokens[:, None]
    times = (met[:, :, None] & same[:, None]).sum(-1)  # [requests, nodes, tokens]

    where = tokens[:, None].expand(-1, nodes, -1)
    values = logits.gather(2, where)
    if counted.frequency is not None:
        cumulated, each = counted.frequency.cumulated, counted.frequency.each[:, :, None]
        values = values - (cumulated.gather(1, tokens)[:, None] + each * times)
        logits.sub_(cumulated[:, None])
    if counted.presence is not None:
        cumulated, each = counted.presence.cumulated, counted.presence.each[:, :, None]
        values = values - torch.where(times > 0, each, cumulated.gather(1, tokens)[:, None])
        logits.sub_(cumulated[:, None])
    if counted.repetition is not None:
        cumulated, each = counted.repetition.cumulated, counted.repetition.each[:, :, None]
        values = _scaled(values, torch.where(times > 0, each, cumulated.gather(1, tokens)[:, None]))
        for node in range(nodes):
            logits[:, node] = _scaled(logits[:, node], cumulated)
    if counted.frequency is not None or counted.presence is not None or counted.repetition is not None:
        logits.scatter_(2, where, values.to(logits.dtype))  # a token that occurs twice here has the same value at both places
    if counted.least is not None and counted.ends is not None:
        early = answered[:, None] + torch.arange(nodes, device=chain.device) < counted.least  # [requests, nodes]
        ends = counted.ends < 0
        for node in range(nodes):
            logits[:, node].masked_fill_(early[:, node, None] & ends, float("-inf"))


def last_run(predicted: torch.Tensor, accepted: torch.Tensor, width: int) -> torch.Tensor:
    """The ``width`` tokens before the last of each accepted run, right-aligned: [requests, width]; filled at the left where it is shorter.

    Args:
        predicted: [requests, nodes] the token after each node of the chain.
        accepted: [requests] tokens of the run, from 1 to nodes.
    """
    node = accepted[:, None].long() - (width + 1) + torch.arange(width, device=predicted.device)
    return predicted.gather(1, node.clamp(min=0)).long()


def _scaled(values: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    return torch.where(values < 0, values * factor, values / factor)
