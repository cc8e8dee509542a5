"""Draft trees of the CPU engine against the CUDA kernel's loops."""

from typing import Any

import pytest
import torch

from sglang_gemma4.cpu import tree


def drafted(seed: Any, requests: Any, topk: Any, steps: Any, width: Any) -> Any:
    """What a drafter of random scores selects: (parent_list, selected_index) as SGLang's organize_draft_results has them."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(requests, topk, generator=generator)
    all_scores, parents = [scores], [torch.arange(-1, topk).expand(requests, -1)]
    for step in range(1, steps):
        children = scores[:, :, None] * torch.rand(requests, topk, topk, generator=generator)  # [requests, topk, topk]
        all_scores.append(children.flatten(1))
        best = children.flatten(1).topk(topk)
        scores = best.values
        parents.append(best.indices + topk**2 * (step - 1) + topk)
    selected = torch.cat(all_scores, 1).topk(width - 1).indices.sort().values
    listed = torch.cat(parents[:-1], 1) if steps > 1 else torch.empty(requests, 0, dtype=torch.long)
    return listed, selected


def naive(
    parent_list: Any, selected: Any, lens: Any, mask: Any, positions: Any, index: Any, child: Any, sibling: Any,
    topk: int, depth: int, width: int, mode: int,
) -> None:  # fmt: skip
    """The CUDA kernel, line by line, for one request after the other."""
    before = 0
    for b, length in enumerate(lens.tolist()):
        chosen = selected[b].tolist()
        positions[b * width] = length

        def parent_of(draft: Any, chosen: Any = chosen, b: Any = b) -> Any:
            bucket = chosen[draft] // topk
            if bucket == 0:
                return 0
            token = int(parent_list[b, bucket])
            return chosen.index(token) + 1 if token in chosen else None

        for i in range(width - 1, 0, -1):
            index[b, i] = b * width + i
            parent = parent_of(i - 1)
            if parent is not None:
                if child[b, parent] != -1:
                    sibling[b, i] = child[b, parent]
                child[b, parent] = i
        index[b, 0] = b * width
        for i in range(width):
            start = width * width * b + width * i
            if mode == tree.FULL_MASK:
                start = width * width * b + before * width + (length + width) * i + length
            mask[start : start + width] = False
            mask[start] = True
            if i > 0:
                at, far = i, 0
                for _ in range(depth):
                    far += 1
                    mask[start + at] = True
                    at = parent_of(at - 1)
                    if not at:
                        break
                positions[b * width + i] = length + far
        before += length


@pytest.mark.parametrize(("topk", "steps", "width"), [(1, 1, 2), (1, 3, 4), (1, 5, 6), (4, 3, 8), (4, 1, 4), (3, 4, 12), (8, 2, 32)])
@pytest.mark.parametrize("mode", [tree.FULL_MASK, tree.QUERIES_ONLY])
@pytest.mark.parametrize("lens", [[5], [7, 1, 30]])
def test_build_tree(topk: Any, steps: Any, width: Any, mode: Any, lens: Any) -> None:
    lens = torch.tensor(lens)
    requests = len(lens)
    parent_list, selected = drafted(width, requests, topk, steps, width)
    cells = width * width * requests + (width * int(lens.sum()) if mode == tree.FULL_MASK else 0)
    results = []
    for build in (naive, tree.build_tree):
        mask = torch.ones(cells, dtype=torch.bool)
        positions = torch.full((requests * width,), -9)
        index, child, sibling = torch.full((3, requests, width), -1)
        build(parent_list, selected, lens, mask, positions, index, child, sibling, topk, steps, width, mode)
        results.append((mask, positions, index, child, sibling))
    for got, expected in zip(results[1], results[0], strict=True):
        assert torch.equal(got, expected)
    square = tree.square_mask(results[1][0], lens, width)
    assert torch.equal(square.sum(-1) - 1 + lens[:, None], results[1][1].view(requests, width))


def test_bit_packed_masks_are_refused() -> None:
    one = torch.zeros(1, 1, dtype=torch.long)
    with pytest.raises(NotImplementedError, match="bit-packed"):
        tree.build_tree(one, one, one, one, one, one, one, one, topk=1, depth=1, width=1, mask_mode=2)
