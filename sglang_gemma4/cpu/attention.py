"""Paged attention in torch: decode, extend and verify over a token-slot KV pool.

A :class:`Batch` describes the query tokens, the slots of each request's keys, and what each query may see.
:func:`plan` splits it into :class:`Block` s of similar requests, padded to one shape and bounded in memory. A plan
depends on the window only, so all layers of a type share it. :func:`attend` runs it.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from sglang_gemma4.kernels.kv_cache.formats import cached_rows

SCORES_PER_BLOCK = 1 << 20
"""Upper bound on requests * queries * keys of a block, per head; a single query row may exceed it."""
KEYS_PER_BLOCK = 1 << 14
"""Upper bound on requests * keys of a block with several requests."""
QUERIES_PER_BLOCK = 512


@dataclass
class Batch:
    """The requests of one forward pass. All lengths are int64 on the CPU.

    Attributes:
        request_rows: [requests] row of each request in ``slot_table``.
        slot_table: [rows, longest] pool slot of each position (``req_to_token``).
        key_lens: [requests] number of keys of each request, new ones included.
        query_lens: [requests] number of new tokens; they are the last keys of their request.
        reach: [tokens] last key position a query may see, or None for causal order (its own position).
        tree: [requests, width, width] True where new token i may see new token j; None unless verifying a draft tree.
    """

    request_rows: torch.Tensor
    slot_table: torch.Tensor
    key_lens: torch.Tensor
    query_lens: torch.Tensor
    reach: torch.Tensor | None = None
    tree: torch.Tensor | None = None


@dataclass
class Block:
    """Queries of some requests, padded to [requests, queries] and [requests, keys].

    Attributes:
        tokens: [requests, queries] row of each query in the batch; padding repeats row 0 of the block.
        used: [requests, queries] False for padding.
        slots: [requests, keys] pool slots; padding repeats the request's last key.
        visible: [requests, queries, keys]
    """

    tokens: torch.Tensor
    used: torch.Tensor
    slots: torch.Tensor
    visible: torch.Tensor


def plan(batch: Batch, window: int | None, translate: Callable[[torch.Tensor], torch.Tensor] | None) -> list[Block]:
    """Cut a batch into blocks.

    Args:
        window: a query at position p sees keys at k with p - window < k; None for no limit.
        translate: maps slots to another pool's (sliding layers have their own).
    """
    starts = torch.cumsum(batch.query_lens, 0) - batch.query_lens
    blocks = []
    depths = batch.key_lens if window is None else torch.minimum(batch.key_lens, batch.query_lens + window)
    for members in _alike(batch.query_lens, depths):
        longest = int(batch.query_lens[members].max())
        keys = int(depths[members].max())
        step = max(1, min(QUERIES_PER_BLOCK, SCORES_PER_BLOCK // max(1, keys * len(members))))
        if batch.tree is not None:
            step = longest
        for first in range(0, longest, step):
            rows = members[batch.query_lens[members] > first]
            blocks.append(_block(batch, rows, starts[rows], first, min(longest, first + step), window, translate))
    return blocks


def _alike(query_lens: torch.Tensor, key_lens: torch.Tensor) -> list[torch.Tensor]:
    """Group requests so that padding at most doubles the work of a group, and a group stays within memory."""
    lengths = list(zip(query_lens.tolist(), key_lens.tolist(), strict=True))
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    groups: list[list[int]] = []
    work = padded_queries = padded_keys = 0
    for index in order:
        queries, keys = lengths[index]
        if queries == 0:
            continue
        wide, deep = max(padded_queries, queries), max(padded_keys, keys)
        members = len(groups[-1]) + 1 if groups else 1
        cost = members * wide * deep
        if groups and cost <= 2 * (work + queries * keys) and members * deep <= KEYS_PER_BLOCK:
            groups[-1].append(index)
            work, padded_queries, padded_keys = work + queries * keys, wide, deep
        else:
            groups.append([index])
            work, padded_queries, padded_keys = queries * keys, queries, keys
    return [torch.tensor(group) for group in groups]


def _block(
    batch: Batch,
    rows: torch.Tensor,
    starts: torch.Tensor,
    first: int,
    last: int,
    window: int | None,
    translate: Callable[[torch.Tensor], torch.Tensor] | None,
) -> Block:
    """The block of queries ``first`` to ``last`` (counted from each request's first new token) of some requests."""
    key_lens = batch.key_lens[rows, None]
    query_lens = batch.query_lens[rows, None]
    prefix = key_lens - query_lens
    offsets = torch.arange(first, last)[None, :]  # [1, queries]
    used = offsets < query_lens
    offsets = torch.minimum(offsets, query_lens - 1)
    tokens = starts[:, None] + offsets
    position = prefix + offsets  # [requests, queries]
    if batch.tree is not None:
        position = prefix + batch.tree[rows].sum(-1).gather(1, offsets) - 1
    reach = position if batch.reach is None else batch.reach[tokens]

    end = key_lens if batch.tree is not None else reach.max(1, keepdim=True).values + 1
    begin = torch.zeros_like(end)
    if window is not None:
        begin = (position.min(1, keepdim=True).values - window + 1).clamp(min=0)
    keys = begin + torch.arange(int((end - begin).max()))[None, :]  # [requests, keys] positions
    slots = batch.slot_table[batch.request_rows[rows, None], torch.minimum(keys, end - 1)].long()
    if translate is not None:
        slots = translate(slots).long()

    where = keys[:, None, :]
    if batch.tree is None:
        visible = (where <= reach[:, :, None]) & (where < end[:, :, None])
    else:
        visible, where = _in_tree(batch.tree[rows], keys, prefix, offsets)
    if window is not None:
        visible &= where > position[:, :, None] - window
    return Block(tokens, used, slots, visible)


def _in_tree(tree: torch.Tensor, keys: torch.Tensor, prefix: torch.Tensor, offsets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Visibility for the nodes of a draft tree: the whole prefix and their ancestors.

    Args:
        tree: [requests, width, width]
        keys: [requests, keys] places in the request's row; the tree's nodes lie behind the prefix.
        prefix: [requests, 1]
        offsets: [requests, queries] node of each query.

    Returns:
        visible [requests, queries, keys], and the position of each key [requests, 1, keys]: a node's is its depth.
    """
    width = tree.shape[1]
    node = keys - prefix  # [requests, keys]
    inside = (node >= 0) & (node < width)
    index = node.clamp(0, width - 1)
    seen = tree.gather(1, offsets[:, :, None].expand(-1, -1, width))
    seen = seen.gather(2, index[:, None, :].expand(-1, offsets.shape[1], -1))
    visible = torch.where((node < 0)[:, None, :], True, seen & inside[:, None, :])
    position = torch.where(node < 0, keys, prefix + tree.sum(-1).gather(1, index) - 1)
    return visible, position[:, None, :]


def attend(
    queries: torch.Tensor,
    key_pool: torch.Tensor,
    value_pool: torch.Tensor,
    blocks: list[Block],
    scaling: float,
    soft_cap: float = 0.0,
    key_scale: float = 1.0,
    value_scale: float = 1.0,
    key_scales: torch.Tensor | None = None,
    value_scales: torch.Tensor | None = None,
) -> torch.Tensor:
    """Grouped-query attention, computed in float32.

    Args:
        queries: [tokens, heads, head_dim]
        key_pool: [slots, kv_heads, head_dim]
        value_pool: [slots, kv_heads, value_dim]
        soft_cap: scores become cap * tanh(scores / cap); 0 for none.
        key_scale: of the whole pool; key_scales: [slots, kv_heads] of each slot's heads, or None. value_scale and value_scales alike.

    Returns:
        [tokens, heads, value_dim] in the queries' dtype. Tokens of no block are zero.
    """
    heads, kv_heads = queries.shape[1], key_pool.shape[1]
    out = queries.new_zeros(queries.shape[0], heads, value_pool.shape[2])
    for block in blocks:
        requests, width = block.tokens.shape
        q = queries[block.tokens].float().view(requests, width, kv_heads, heads // kv_heads, -1)
        q = q.permute(0, 2, 3, 1, 4).flatten(2, 3)  # [requests, kv_heads, group * queries, head_dim]
        k = cached_rows(key_pool, block.slots, key_scales).permute(0, 2, 3, 1)  # [requests, kv_heads, head_dim, keys]
        v = cached_rows(value_pool, block.slots, value_scales).transpose(1, 2)  # [requests, kv_heads, keys, value_dim]
        scores = torch.matmul(q, k).mul_(scaling * key_scale)
        if soft_cap > 0:
            scores.div_(soft_cap).tanh_().mul_(soft_cap)
        scores = scores.view(requests, heads, width, -1)
        scores.masked_fill_(~block.visible[:, None], float("-inf"))
        weights = scores.softmax(-1).view(requests, kv_heads, -1, scores.shape[-1])
        result = torch.matmul(weights, v).mul_(value_scale).view(requests, heads, width, -1).transpose(1, 2)
        out[block.tokens[block.used]] = result[block.used].to(out.dtype)
    return out
