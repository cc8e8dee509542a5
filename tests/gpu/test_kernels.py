"""Kernels compiled on a card against their references, at Gemma 4's real head dimensions."""

import itertools
from typing import Any

import pytest
import torch

from sglang_gemma4.attention import flash_prefill
from sglang_gemma4.attention.fixed_flash import FixedFlash
from sglang_gemma4.kernels import dependent_launch
from sglang_gemma4.kernels.attention import few_query_attention as op
from sglang_gemma4.kernels.attention import prefill_attention as prefill

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

POISON = 1e4
LAYERS = [(16, 8, 256, 1023), (16, 2, 512, -1), (8, 1, 256, 511), (8, 1, 512, -1), (32, 16, 256, 1023)]
"""Query heads, KV heads, head dimension and window of 26B-A4B, E2B and 31B."""
TOLERANCE = {torch.bfloat16: 2e-2, torch.float16: 3e-3, torch.float32: 2e-5}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize(("heads", "kv_heads", "dim", "window"), LAYERS)
@pytest.mark.parametrize(
    ("lengths", "queries"),
    [
        ([900, 64], 16),
        *itertools.product(([1], [1023, 1, 300, 64], [5000, 129] * 8, [5658, *[200] * 60]), (1, 4)),
    ],
    ids=lambda given: f"{len(given)} of up to {max(given)}" if isinstance(given, list) else None,
)
def test_few_query_attention(
    lengths: list[int], queries: int, heads: int, kv_heads: int, dim: int, window: int, dtype: torch.dtype
) -> None:
    """Within the rounding of the output's type of the reference, which computes in float32; poison in slots nobody owns and behind."""
    if window >= 0:
        lengths = [min(length, window + 1) for length in lengths]
    torch.manual_seed(0)
    total, requests = sum(lengths), len(lengths)
    slots = torch.randperm(total + 7, device="cuda")
    keys, values = (torch.full((total + 7, kv_heads, dim), POISON, dtype=dtype, device="cuda") for _ in range(2))
    for buffer in (keys, values):
        buffer[slots[:total]] = torch.randn(total, kv_heads, dim, device="cuda").to(dtype)
    given: dict[str, Any] = {"queries": queries, "window": window}
    if queries > 1:
        packed = torch.randn(requests * queries, kv_heads, 2 * dim, device="cuda").to(dtype)
        given |= {"k_new": packed[..., :dim], "v_new": packed[..., dim:]}
    indptr = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32, device="cuda")
    q = torch.randn(requests * queries, heads, dim, device="cuda").to(dtype)
    memory = torch.full((requests * queries + 1, heads, dim), POISON, dtype=dtype, device="cuda")
    if queries * heads // kv_heads == 128 and dim == 512 and dtype == torch.float32:
        with pytest.raises(ValueError, match="no tile for 16 query tokens of 8 heads"):
            op.few_query_attention(q, keys, values, indptr, slots, dim**-0.5, out=memory[:-1], **given)
        return
    expected = op.few_query_attention_reference(q, keys, values, indptr, slots, dim**-0.5, **given)
    found = op.few_query_attention(q, keys, values, indptr, slots, dim**-0.5, out=memory[:-1], balanced=requests > 16, **given)
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(found.float(), expected.float(), atol=tolerance, rtol=tolerance)
    assert (memory[-1] == POISON).all(), "wrote behind the output"


@pytest.mark.parametrize("balanced", [False, True], ids=["as if equal", "balanced"])
@pytest.mark.parametrize("early", [False, True], ids=["in turn", "early"])
@pytest.mark.parametrize(("heads", "kv_heads", "dim", "queries"), [(16, 8, 256, 4), (16, 2, 512, 4), (8, 1, 256, 1)])
def test_replays_join_whatever_lengths_they_find(heads: int, kv_heads: int, dim: int, queries: int, early: bool, balanced: bool) -> None:
    """A graph of layers that write where others wrote, replayed over lengths and values that change: a part that was read too early, or
    from a cache that is behind, is another replay's."""
    torch.manual_seed(0)
    requests, most, layers = 3, 9000, 4
    keys, values = (torch.randn(layers, requests * most, kv_heads, dim, device="cuda").bfloat16() for _ in range(2))
    slots = torch.randperm(requests * most, device="cuda")
    indptr = torch.zeros(requests + 1, dtype=torch.int32, device="cuda")
    q = torch.empty(requests * queries, heads, dim, dtype=torch.bfloat16, device="cuda")
    outs = [torch.empty_like(q) for _ in range(layers)]
    fresh = torch.randn(requests * queries, kv_heads, dim, device="cuda").bfloat16()
    given: dict[str, Any] = {"queries": queries} | ({"k_new": fresh, "v_new": fresh} if queries > 1 else {})

    def step() -> None:
        for k, v, out in zip(keys, values, outs, strict=True):
            op.few_query_attention(q, k, v, indptr, slots, dim**-0.5, out=out, balanced=balanced, **given)

    steps = []
    for lengths in ([9000, 1, 130], [1, 1, 1], [257, 9000, 2048], [1000, 1000, 1000]):
        steps.append((torch.randn_like(q), torch.tensor([0, *lengths], device="cuda").cumsum(0).int()))
    expected = []
    for states, starts in steps:
        q.copy_(states)
        indptr.copy_(starts)
        step()
        expected.append([out.clone() for out in outs])
    dependent_launch.want(early)
    step()
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        step()
    try:
        for number in range(400):
            states, starts = steps[number % len(steps)]
            q.copy_(states)
            indptr.copy_(starts)
            for out in outs:
                out.fill_(POISON)
            graph.replay()
            for out, right in zip(outs, expected[number % len(steps)], strict=True):
                assert torch.equal(out, right), f"replay {number}"
    finally:
        dependent_launch.want(False)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("heads", "kv_heads", "dim", "window"), LAYERS)
@pytest.mark.parametrize(("prefixes", "tokens"), [([0], [1500]), ([1023, 0, 77], [5, 700, 1]), ([511] * 5, [64, 1, 200, 33, 128])])
def test_prefill_attention(
    prefixes: list[int], tokens: list[int], heads: int, kv_heads: int, dim: int, window: int, dtype: torch.dtype
) -> None:
    """As above, over prompts and chunks of them."""
    torch.manual_seed(0)
    total, new = sum(prefixes), sum(tokens)
    slots = torch.randperm(total + 7, device="cuda")
    keys, values = (torch.full((total + 7, kv_heads, dim), POISON, dtype=dtype, device="cuda") for _ in range(2))
    for buffer in (keys, values):
        buffer[slots[:total]] = torch.randn(total, kv_heads, dim, device="cuda").to(dtype)
    packed = torch.randn(new, kv_heads, 2 * dim, device="cuda").to(dtype)
    starts = [
        torch.tensor([0, *torch.tensor(counts).cumsum(0).tolist()], dtype=torch.int32, device="cuda") for counts in (tokens, prefixes)
    ]
    given = (
        torch.randn(new, heads, dim, device="cuda").to(dtype),
        packed[..., :dim],
        packed[..., dim:],
        keys,
        values,
        *starts,
        slots,
        dim**-0.5,
    )
    memory = torch.full((new + 1, heads, dim), POISON, dtype=dtype, device="cuda")
    expected = prefill.prefill_attention_reference(*given, window=window)
    found = prefill.prefill_attention(*given, out=memory[:-1], longest=max(tokens), window=window)
    torch.testing.assert_close(found.float(), expected.float(), atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
    assert (memory[-1] == POISON).all(), "wrote behind the output"


@pytest.mark.parametrize(("heads", "kv_heads", "dim", "window"), LAYERS)
@pytest.mark.parametrize(
    ("prefixes", "tokens"), [([0], [1500]), ([0, 0, 0], [700, 1, 900]), ([1023, 0, 77], [5, 700, 1]), ([3000], [1024])]
)
def test_flash_prefill(prefixes: list[int], tokens: list[int], heads: int, kv_heads: int, dim: int, window: int) -> None:
    """SGLang's FlashAttention-4 over keys put in order: both head dimensions, windows, several requests, prefixes."""
    if problem := flash_prefill.reason_against():
        pytest.skip(problem)
    from sglang.kernels.ops.attention.flash_attention_v4 import flash_attn_varlen_func

    if window >= 0:
        prefixes = [min(prefix, window) for prefix in prefixes]
    torch.manual_seed(0)
    total, new = sum(prefixes), sum(tokens)
    slots = torch.randperm(total + 7, device="cuda")
    keys, values = (torch.full((total + 7, kv_heads, dim), POISON, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    for buffer in (keys, values):
        buffer[slots[:total]] = torch.randn(total, kv_heads, dim, device="cuda").bfloat16()
    packed = torch.randn(new, kv_heads, 2 * dim, device="cuda").bfloat16()
    given: dict[str, Any] = {
        "q": torch.randn(new, heads, dim, device="cuda").bfloat16(),
        "k": packed[..., :dim].contiguous(),
        "v": packed[..., dim:].contiguous(),
        "k_buffer": keys,
        "v_buffer": values,
        "qo_indptr": torch.tensor([0, *torch.tensor(tokens).cumsum(0).tolist()], dtype=torch.int32, device="cuda"),
        "kv_indptr": torch.tensor([0, *torch.tensor(prefixes).cumsum(0).tolist()], dtype=torch.int32, device="cuda"),
        "kv_indices": slots[:total],
        "scale": dim**-0.5,
    }
    memory = torch.full((new + 1, heads, dim), POISON, dtype=torch.bfloat16, device="cuda")
    expected = prefill.prefill_attention_reference(**given, window=window)
    flash_prefill.FlashPrefill(flash_attn_varlen_func)(**given, out=memory[:-1], longest=max(tokens), window=window)
    torch.testing.assert_close(memory[:-1].float(), expected.float(), atol=TOLERANCE[torch.bfloat16], rtol=TOLERANCE[torch.bfloat16])
    assert (memory[-1] == POISON).all(), "wrote behind the output"


@pytest.mark.parametrize(("heads", "kv_heads"), [(16, 2), (8, 1)])
@pytest.mark.parametrize("rows", [64, 2048])
def test_flash_attention_in_a_graph(rows: int, heads: int, kv_heads: int) -> None:
    """Captured without a prompt, then replayed with others: what it writes is bit by bit what it writes launched by itself, and right.

    Rows of running requests come first and are not written, nor those of nobody; what lies in the buffers from before does not count.
    """
    if problem := flash_prefill.reason_against():
        pytest.skip(problem)
    from sglang.kernels.ops.attention.flash_attention_v4 import flash_attn_varlen_func

    dim, prompts, room = 512, 32, 8192
    kind, dtype, card = flash_prefill.Kind(heads, kv_heads, dim, -1), torch.bfloat16, torch.device("cuda")
    taken = flash_prefill.FlashPrefill(flash_attn_varlen_func, {kind: 1})
    flash = FixedFlash(taken, kind, 2048, prompts, room, dtype, card)
    torch.manual_seed(0)
    keys, values = (torch.randn(room + 7, kv_heads, dim, device=card).to(dtype) for _ in range(2))
    q, out = (torch.zeros(rows, heads, dim, dtype=dtype, device=card) for _ in range(2))
    k, v = (torch.zeros(rows, kv_heads, dim, dtype=dtype, device=card) for _ in range(2))
    starts, offsets = (torch.zeros(prompts + 1, dtype=torch.int32, device=card) for _ in range(2))
    slots = torch.zeros(room, dtype=torch.int64, device=card)

    def call() -> None:
        flash(q, k, v, keys, values, starts, offsets, slots, dim**-0.5, out)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        call()
    steps: list[tuple[int, list[int], list[int]]] = [
        (0, [0], [rows]),
        (16, [3000], [rows - 16]),
        (rows - 40, [room], [40]),
        (5, [77, 0, 1023, 5], [1, 30, 2, 17]),
        (0, [0] * prompts, [2] * prompts),
        (rows - 1, [room - 1], [1]),
        (12, [], []),
    ]
    for before, prefixes, tokens in steps:
        for tensor in (q, k, v):
            tensor.normal_()
        slots.copy_(torch.randperm(room + 7, device=card)[:room])
        for offset, first, counts in ((starts, before, tokens), (offsets, 0, prefixes)):
            ends = torch.tensor([first, *counts]).cumsum(0)
            offset.copy_(torch.cat([ends, ends[-1:].expand(prompts - len(counts))]))
        flash.fill(starts, offsets)
        found = []
        for launch in (call, graph.replay):
            out.fill_(POISON)
            flash.keys.fill_(float("nan"))
            flash.values.fill_(float("nan"))
            launch()
            found.append(out.clone())
        assert torch.equal(*found), (before, prefixes, tokens)
        own = slice(before, before + sum(tokens))
        assert (found[1][: own.start] == POISON).all(), "rows of running requests"
        assert (found[1][own.stop :] == POISON).all(), "rows of nobody"
        if not tokens:
            continue
        new, cached = (offset[: len(tokens) + 1] - offset[0] for offset in (starts, offsets))
        expected = prefill.prefill_attention_reference(q[own], k[own], v[own], keys, values, new, cached, slots, dim**-0.5)
        torch.testing.assert_close(found[1][own].float(), expected.float(), atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
