"""Draft trees: the tables that verification walks, and their attention masks.

A tree of ``width`` nodes hangs from the last committed token (node 0). Node i > 0 is the i-1-th selected draft
token; ``parent_list`` and ``selected_index`` number candidates as EAGLE does: candidate c of step s > 0 is
``topk + (s - 1) * topk**2 + c`` and its parent is found in ``parent_list[c // topk]``.
"""

import torch

FULL_MASK, QUERIES_ONLY = 0, 1
"""SGLang's ``TreeMaskMode``: rows over prefix and tree, or over the tree alone."""


def parents(parent_list: torch.Tensor, selected_index: torch.Tensor, topk: int) -> torch.Tensor:
    """Parent node of each node: [requests, width] int64, 0 for the root itself and -1 for an orphan.

    Args:
        parent_list: [requests, candidates with children] (its first entry is the root).
        selected_index: [requests, width - 1] ascending candidate numbers.
    """
    requests = selected_index.shape[0]
    bucket = selected_index // topk  # [requests, drafts]
    if parent_list.shape[1] == 0:
        candidate = torch.full_like(selected_index, -1)
    else:
        candidate = parent_list.gather(1, bucket.clamp(max=parent_list.shape[1] - 1))
    match = candidate[:, :, None] == selected_index[:, None, :]  # [requests, drafts, drafts]
    node = torch.where(match.any(-1), match.long().argmax(-1) + 1, -1)
    node = torch.where(bucket == 0, 0, node)
    return torch.cat([node.new_zeros(requests, 1), node], 1)


def ancestors(parent: torch.Tensor, depth: int) -> torch.Tensor:
    """Which nodes each node may see: [requests, width, width] bool; itself, its ancestors and the root.

    Args:
        parent: [requests, width] as from :func:`parents`.
        depth: longest path to follow.
    """
    requests, width = parent.shape
    nodes = torch.arange(width)
    seen = torch.zeros(requests, width, width, dtype=torch.bool)
    seen[:, :, 0] = True
    at = nodes.expand(requests, width)
    for _ in range(depth + 1):
        seen.scatter_(2, at[:, :, None].clamp(min=0), True)
        at = torch.where(at > 0, parent.gather(1, at.clamp(min=0)), 0).clamp(min=0)
    return seen


def build_tree(
    parent_list: torch.Tensor,
    selected_index: torch.Tensor,
    prefix_lens: torch.Tensor,
    tree_mask: torch.Tensor,
    positions: torch.Tensor,
    retrieve_index: torch.Tensor,
    retrieve_next_token: torch.Tensor,
    retrieve_next_sibling: torch.Tensor,
    topk: int,
    depth: int,
    width: int,
    mask_mode: int,
) -> None:
    """Fill the mask, the positions and the three tables, in place, as SGLang's CUDA kernel does.

    Args:
        prefix_lens: [requests] committed tokens.
        tree_mask: flat; per request ``width`` rows of prefix + width cells (FULL_MASK, prefix cells untouched)
            or of width cells (QUERIES_ONLY).
        positions: [requests * width]
        retrieve_index: [requests, width] flat number of each node.
        retrieve_next_token: [requests, width] first child, -1 for none (given filled with -1).
        retrieve_next_sibling: [requests, width] next child of the same parent, -1 for none (given filled with -1).

    Raises:
        NotImplementedError: for another mask mode.
    """
    mode = int(mask_mode)
    if mode not in (FULL_MASK, QUERIES_ONLY):
        raise NotImplementedError(f"tree mask mode {mode} (bit-packed) is not implemented on the CPU; use 0 or 1")
    requests = prefix_lens.numel()
    prefix_lens = prefix_lens.long()
    nodes = torch.arange(width)
    retrieve_index.copy_(torch.arange(requests)[:, None] * width + nodes)
    parent = parents(parent_list.long(), selected_index.long(), topk)

    # The CUDA kernel links nodes backwards, which leaves children in ascending order.
    same = (parent[:, :, None] == parent[:, None, :]) & (parent >= 0)[:, :, None]
    same[:, :, 0] = same[:, 0, :] = False  # the root is no node's child
    later = same & (nodes[None, :] > nodes[:, None])
    sibling = torch.where(later.any(-1), later.long().argmax(-1), -1)
    retrieve_next_sibling.copy_(torch.where(sibling >= 0, sibling, retrieve_next_sibling))
    child = parent[:, None, :] == nodes[None, :, None]  # [requests, parent, child]
    child[:, :, 0] = False
    first = torch.where(child.any(-1), child.long().argmax(-1), -1)
    retrieve_next_token.copy_(torch.where(first >= 0, first, retrieve_next_token))

    seen = ancestors(parent, depth)
    positions.copy_((prefix_lens[:, None] + seen.sum(-1) - 1).flatten())
    tree_mask.view(-1)[_cells(prefix_lens, width, mode)] = seen.to(tree_mask.dtype)


def square_mask(mask: torch.Tensor, prefix_lens: torch.Tensor, width: int) -> torch.Tensor:
    """The tree's own cells [requests, width, width] of a flat mask in either layout."""
    requests = prefix_lens.numel()
    mode = QUERIES_ONLY if mask.numel() == requests * width * width else FULL_MASK
    return mask.view(-1)[_cells(prefix_lens.long(), width, mode)].bool()


def _cells(prefix_lens: torch.Tensor, width: int, mode: int) -> torch.Tensor:
    """Flat position of each request's tree cells: [requests, width, width]."""
    requests = torch.arange(prefix_lens.numel())[:, None, None]
    row, column = torch.arange(width)[None, :, None], torch.arange(width)[None, None, :]
    base = requests * width * width
    if mode == QUERIES_ONLY:
        return base + row * width + column
    lens = prefix_lens[:, None, None]
    before = (torch.cumsum(prefix_lens, 0) - prefix_lens)[:, None, None]
    return base + before * width + row * (lens + width) + lens + column
