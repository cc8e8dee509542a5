"""Verification on the CPU engine: against loops, and against the distribution it must follow."""

from typing import Any

import pytest
import torch

from sglang_gemma4.cpu import tree, verify
from tests.unit.test_cpu_tree import drafted

VOCAB = 11


def built(seed: Any, requests: Any, topk: Any, steps: Any, width: Any) -> Any:
    """Tables of random trees: index, child, sibling, and tokens that differ among siblings."""
    parent_list, selected = drafted(seed, requests, topk, steps, width)
    index, child, sibling = torch.full((3, requests, width), -1)
    mask, positions = torch.ones(requests * width * width, dtype=torch.bool), torch.empty(requests * width, dtype=torch.long)
    tree.build_tree(parent_list, selected, torch.full((requests,), 3), mask, positions, index, child, sibling, topk, steps, width, 1)
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.stack([torch.randperm(max(VOCAB, width), generator=generator)[:width] % VOCAB for _ in range(requests)])
    return index, child, sibling, tokens


def outputs(requests: Any, width: Any, levels: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return (
        torch.full((requests * width,), -7, dtype=torch.int32),
        torch.full((requests, levels), -1, dtype=torch.int32),
        torch.full((requests,), -7, dtype=torch.int32),
    )


def naive_greedy(predicts: Any, accept_index: Any, count: Any, tokens: Any, index: Any, child: Any, sibling: Any, target: Any) -> None:
    for b in range(len(tokens)):
        last = number = 0
        accept_index[b, 0] = index[b, 0]
        for _ in range(1, accept_index.shape[1]):
            node = int(child[b, last])
            while node != -1 and tokens[b, node] != target[b, last]:
                node = int(sibling[b, node])
            if node == -1:
                break
            predicts[index[b, last]] = target[b, last]
            number += 1
            accept_index[b, number] = index[b, node]
            last = node
        count[b] = number
        predicts[index[b, last]] = target[b, last]


def naive_sampled(
    predicts: Any, accept_index: Any, count: Any, tokens: Any, index: Any, child: Any, sibling: Any,
    coins: Any, final: Any, probs: Any, single: float, acc: float,
) -> None:  # fmt: skip
    """``TreeSpeculativeSamplingTargetOnly`` of SGLang's CUDA kernel for one request after the other."""
    for b in range(len(tokens)):
        refused = torch.zeros_like(probs[b])
        accept_index[b, 0] = index[b, 0]
        share = torch.tensor(0.0)
        coin, last, number, at = coins[b, 0], index[b, 0], 0, 0
        node = 0
        for _ in range(1, accept_index.shape[1]):
            node = int(child[b, node])
            while node != -1:
                token = tokens[b, node]
                probability = probs[b, at, token]
                share = share + probability
                if probability > 0 and (coin < share / max(acc, 1e-9) or probability >= single):
                    share = torch.tensor(0.0)
                    at, coin = node, coins[b, node]
                    predicts[last] = token
                    number += 1
                    accept_index[b, number] = index[b, node]
                    last = index[b, node]
                    break
                refused[at, token] = probability
                node = int(sibling[b, node])
            if node == -1:
                break
        count[b] = number
        full = number == accept_index.shape[1] - 1
        left = (probs[b, at] - (0 if full else refused[at])).clamp(min=0).double()
        target = final[b].double() * left.sum()
        cumulative = left.cumsum(0)
        drawn = [i for i in range(len(left)) if left[i] > 0 and cumulative[i] > target]
        positive = left.nonzero().flatten().tolist()
        predicts[last] = drawn[0] if drawn else positive[-1] if positive else len(left) - 1


TREES = [(1, 3, 4), (1, 1, 2), (4, 3, 8), (3, 4, 9)]


@pytest.mark.parametrize(("topk", "steps", "width"), TREES)
@pytest.mark.parametrize("seed", range(5))
def test_greedy(topk: Any, steps: Any, width: Any, seed: Any) -> None:
    requests = 6
    index, child, sibling, tokens = built(seed, requests, topk, steps, width)
    generator = torch.Generator().manual_seed(seed)
    target = torch.randint(VOCAB, (requests, width), generator=generator)
    for b in range(requests - 1):  # make drafts right here and there
        for node in range(width):
            if child[b, node] != -1 and torch.rand(1, generator=generator) < 0.8:
                target[b, node] = tokens[b, int(child[b, node])]
    expected, got = outputs(requests, width, steps + 1), outputs(requests, width, steps + 1)
    naive_greedy(*expected, tokens, index, child, sibling, target)
    verify.verify_greedy(*got, tokens, index, child, sibling, target)
    for one, other in zip(got, expected, strict=True):
        assert torch.equal(one, other)
    assert steps == 1 or len(set(got[2].tolist())) > 1, "acceptance is partial"


@pytest.mark.parametrize(("topk", "steps", "width"), TREES)
@pytest.mark.parametrize(("single", "acc"), [(1.0, 1.0), (0.15, 1.0), (1.0, 0.5), (1.0, 0.0)])
@pytest.mark.parametrize("seed", range(3))
def test_sampled(topk: Any, steps: Any, width: Any, single: Any, acc: Any, seed: Any) -> None:
    requests = 8
    index, child, sibling, tokens = built(seed, requests, topk, steps, width)
    generator = torch.Generator().manual_seed(seed)
    probs = (3 * torch.randn(requests, width, VOCAB, generator=generator)).softmax(-1)
    probs = torch.where(probs < 0.01, 0.0, probs)
    coins = torch.rand(requests, width, generator=generator)
    final = torch.rand(requests, generator=generator)
    expected, got = outputs(requests, width, steps + 1), outputs(requests, width, steps + 1)
    naive_sampled(*expected, tokens, index, child, sibling, coins, final, probs, single, acc)
    verify.verify_sampled(*got, tokens, index, child, sibling, coins, final, probs, None, single, acc)
    for one, other in zip(got, expected, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(("topk", "steps", "width"), [(1, 3, 4), (4, 3, 8)])
def test_sampled_tokens_follow_the_target(topk: Any, steps: Any, width: Any) -> None:
    """Whatever was drafted, the first token has the root's distribution and the second its parent's."""
    requests = 40_000
    index, child, sibling, tokens = (x[:1].expand(requests, -1).clone() for x in built(2, 1, topk, steps, width))
    index += torch.arange(requests)[:, None] * width
    generator = torch.Generator().manual_seed(0)
    probs = (2 * torch.randn(width, VOCAB, generator=generator)).softmax(-1)
    predicts, accept_index, count = outputs(requests, width, steps + 1)
    verify.verify_sampled(
        predicts, accept_index, count, tokens, index, child, sibling,
        torch.rand(requests, width, generator=generator), torch.rand(requests, generator=generator),
        probs.expand(requests, width, VOCAB),
    )  # fmt: skip
    assert_distribution(predicts.view(requests, width)[:, 0], probs[0])
    second = accept_index[:, 1] % width
    seen = 0
    for node in second[accept_index[:, 1] >= 0].unique().tolist():
        rows = (accept_index[:, 1] >= 0) & (second == node)
        assert_distribution(predicts.view(requests, width)[rows, node], probs[node])
        seen += 1
    assert seen >= (2 if topk > 1 else 1)


def assert_distribution(drawn: Any, probs: Any) -> None:
    """Chi-square of the draws against the probabilities, at one in a million."""
    counts = torch.bincount(drawn.long(), minlength=len(probs)).double()
    expected = probs.double() * counts.sum()
    common = expected > 5
    statistic = float(((counts - expected) ** 2 / expected)[common].sum())
    degrees = int(common.sum()) - 1
    z = ((statistic / degrees) ** (1 / 3) - (1 - 2 / (9 * degrees))) / (2 / (9 * degrees)) ** 0.5  # Wilson-Hilferty
    assert z < 4.75, (statistic, degrees)


def test_inverse_cdf_draws_no_zero_weight() -> None:
    weights = torch.tensor([[0.0, 1.0, 0.0, 2.0, 0.0], [0.0, 0.0, 0.0, 0.0, 5.0]]).double()
    coins = torch.tensor([0.0, 1 - 2**-24])
    assert verify.inverse_cdf(weights, coins).tolist() == [1, 4]
    assert verify.inverse_cdf(weights, coins.flip(0)).tolist() == [3, 4]


def test_no_weight_left_gives_the_last_choice() -> None:
    assert verify.inverse_cdf(torch.zeros(2, 5, dtype=torch.double), torch.tensor([0.0, 0.9])).tolist() == [4, 4]
