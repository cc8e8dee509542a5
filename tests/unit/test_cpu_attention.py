"""The CPU engine's attention against one query at a time."""

import itertools
import random
from typing import Any

import pytest
import torch

from sglang_gemma4.cpu import attention
from sglang_gemma4.cpu.attention import Batch, attend, plan
from sglang_gemma4.cpu.tree import ancestors

POISON = float("nan")


def naive(queries: Any, keys: Any, values: Any, visible: Any, scaling: Any, soft_cap: Any) -> Any:
    """One query over the keys it sees. queries [heads, dim], keys/values [keys, kv_heads, dim], visible: list of keys."""
    group = queries.shape[0] // keys.shape[1]
    out = []
    for head in range(queries.shape[0]):
        k, v = keys[visible, head // group].double(), values[visible, head // group].double()
        scores = (k @ queries[head].double()) * scaling
        if soft_cap:
            scores = soft_cap * torch.tanh(scores / soft_cap)
        out.append(scores.softmax(0) @ v)
    return torch.stack(out)


class Case:
    """A random batch whose unused slots hold NaN."""

    def __init__(self, seed: Any, lengths: Any, heads: Any, kv_heads: Any, dim: Any, value_dim: Any, dtype: Any = torch.float32) -> None:
        generator = torch.Generator().manual_seed(seed)
        total, longest = sum(keys for keys, _ in lengths), max(keys for keys, _ in lengths)
        slots = torch.randperm(2 * total + 7, generator=generator)[:total]
        self.keys = torch.full((2 * total + 7, kv_heads, dim), POISON, dtype=dtype)
        self.values = torch.full((2 * total + 7, kv_heads, value_dim), POISON, dtype=dtype)
        self.keys[slots] = torch.randn(total, kv_heads, dim, generator=generator).to(dtype)
        self.values[slots] = torch.randn(total, kv_heads, value_dim, generator=generator).to(dtype)
        self.queries = torch.randn(sum(q for _, q in lengths), heads, dim, generator=generator).to(dtype)
        rows = torch.randperm(len(lengths) + 3, generator=generator)[: len(lengths)]
        table = torch.full((len(lengths) + 3, longest + 5), 10**6, dtype=torch.int32)
        for row, own, (keys, _) in zip(rows, slots.split([k for k, _ in lengths]), lengths, strict=True):
            table[row, :keys] = own.int()
        self.lengths = lengths
        self.batch = Batch(rows, table, torch.tensor([k for k, _ in lengths]), torch.tensor([q for _, q in lengths]))

    def check(self, window: Any, soft_cap: Any, visible_of: Any, scaling: Any = 0.3, atol: Any = 2e-6, translate: Any = None) -> None:
        out = attend(self.queries, self.keys, self.values, plan(self.batch, window, translate), scaling, soft_cap)
        token = 0
        for request, (keys, queries) in enumerate(self.lengths):
            slots = self.batch.slot_table[self.batch.request_rows[request], :keys].long()
            if translate is not None:
                slots = translate(slots)
            for query in range(queries):
                seen = visible_of(request, keys - queries, query)
                expected = naive(self.queries[token], self.keys[slots], self.values[slots], seen, scaling, soft_cap)
                torch.testing.assert_close(out[token].double(), expected, atol=atol, rtol=atol)
                token += 1


SHAPES = [
    [(1, 1)],
    [(5, 1), (64, 1), (1, 1)],
    [(7, 7)],
    [(40, 3), (3, 3), (19, 18), (100, 1)],
    [(130, 129), (17, 2)],
    [(90, 4)] * 5,
]


@pytest.mark.parametrize("lengths", SHAPES, ids=str)
@pytest.mark.parametrize("window", [None, 1, 4, 33])
@pytest.mark.parametrize(("heads", "kv_heads", "dim", "value_dim"), [(4, 2, 8, 8), (3, 1, 5, 7), (2, 2, 16, 16)])
@pytest.mark.parametrize("soft_cap", [0.0, 2.0])
def test_causal(lengths: Any, window: Any, heads: Any, kv_heads: Any, dim: Any, value_dim: Any, soft_cap: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(attention, "SCORES_PER_BLOCK", 300)  # several blocks
    case = Case(len(lengths), lengths, heads, kv_heads, dim, value_dim)

    def visible(_request: Any, prefix: Any, query: Any) -> Any:
        first = 0 if window is None else max(0, prefix + query - window + 1)
        return list(range(first, prefix + query + 1))

    case.check(window, soft_cap, visible)


@pytest.mark.parametrize("window", [None, 3, 12])
def test_one_block_is_many_blocks(window: Any, monkeypatch: Any) -> None:
    case = Case(3, SHAPES[3], 4, 2, 8, 8)
    outputs = []
    for bound in (1 << 20, 64):
        monkeypatch.setattr(attention, "SCORES_PER_BLOCK", bound)
        monkeypatch.setattr(attention, "KEYS_PER_BLOCK", bound)
        outputs.append(attend(case.queries, case.keys, case.values, plan(case.batch, window, None), 1.0))
    torch.testing.assert_close(*outputs, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(dtype: Any) -> None:
    case = Case(5, SHAPES[3], 4, 2, 8, 8, dtype)
    case.check(6, 0.0, lambda _r, p, q: list(range(max(0, p + q - 5), p + q + 1)), atol=torch.finfo(dtype).eps)


def test_slots_of_another_pool() -> None:
    case = Case(6, SHAPES[1], 2, 1, 4, 4)
    size = case.keys.shape[0]
    mapping = torch.randperm(size, generator=torch.Generator().manual_seed(1))
    case.keys, case.values = case.keys[mapping.argsort()], case.values[mapping.argsort()]
    case.check(9, 0.0, lambda _r, p, q: list(range(max(0, p + q - 8), p + q + 1)), translate=lambda s: mapping[s])


@pytest.mark.parametrize("window", [2, 5, 50])
def test_images_see_both_ways_within_the_window(window: Any) -> None:
    lengths = [(30, 22), (9, 9), (12, 12)]
    spans = {0: (10, 17), 2: (1, 11)}
    case = Case(7, lengths, 4, 1, 8, 8)

    def last(request: Any, position: Any) -> Any:
        begin, end = spans.get(request, (1, 0))
        return end if begin <= position <= end else position

    case.batch.reach = torch.tensor([last(r, keys - n + q) for r, (keys, n) in enumerate(lengths) for q in range(n)])
    case.check(window, 0.0, lambda r, p, q: [k for k in range(last(r, p + q) + 1) if k > p + q - window])


@pytest.mark.parametrize("window", [None, 1, 2, 3, 7, 40])
@pytest.mark.parametrize("soft_cap", [0.0, 3.0])
@pytest.mark.parametrize("seed", range(3))
def test_trees(window: Any, soft_cap: Any, seed: Any) -> None:
    rng, width = random.Random(seed), 6
    lengths = [(prefix + width, width) for prefix in (3, 20, 1, 50)]
    case = Case(seed, lengths, 4, 2, 8, 8)
    parent = torch.tensor([[0] + [rng.randrange(i) for i in range(1, width)] for _ in lengths])
    case.batch.tree = ancestors(parent, width)

    def path(request: Any, node: Any) -> Any:
        nodes = [node]
        while nodes[-1]:
            nodes.append(int(parent[request, nodes[-1]]))
        return nodes

    def visible(request: Any, prefix: Any, query: Any) -> Any:
        depth = len(path(request, query)) - 1
        seen = [k for k in range(prefix) if window is None or k > prefix + depth - window]
        nodes = [n for n in path(request, query) if window is None or len(path(request, n)) - 1 > depth - window]
        return seen + sorted(prefix + n for n in nodes)

    case.check(window, soft_cap, visible)


def test_tokens_of_no_request_are_zero() -> None:
    case = Case(8, [(4, 2), (6, 3)], 2, 1, 4, 4)
    queries = torch.cat([case.queries, torch.full((3, 2, 4), POISON)])
    out = attend(queries, case.keys, case.values, plan(case.batch, 3, None), 1.0)
    assert torch.equal(out[5:], torch.zeros(3, 2, 4))
    assert out[:5].isfinite().all()


def test_no_new_tokens() -> None:
    assert plan(Batch(torch.tensor([0]), torch.zeros(1, 4), torch.tensor([3]), torch.tensor([0])), None, None) == []


def test_grouping_keeps_padding_bounded() -> None:
    lengths = list(itertools.product([1, 2, 500], [600, 1200]))
    queries, keys = (torch.tensor(x) for x in zip(*lengths, strict=True))
    groups = attention._alike(queries, keys)
    assert sorted(i for group in groups for i in group.tolist()) == list(range(len(lengths)))
    for group in groups:
        padded = len(group) * int(queries[group].max()) * int(keys[group].max())
        assert padded <= 2 * int((queries[group] * keys[group]).sum())
