"""The experts' kernels compiled on a card against float32, at 26B-A4B's real size; rows without an expert, bits that stay the same."""

import pytest
import torch

from sglang_gemma4.kernels import dependent_launch
from sglang_gemma4.kernels.experts import expert_blocks as grouping
from sglang_gemma4.kernels.experts import routed_product
from sglang_gemma4.kernels.experts.expert_routing import expert_routing, expert_routing_reference
from sglang_gemma4.kernels.experts.few_token_experts import counters
from sglang_gemma4.kernels.experts.few_token_experts import few_token_experts as few_token_experts_counting
from sglang_gemma4.kernels.experts.grouped_experts import grouped_experts
from sglang_gemma4.kernels.experts.prefill_experts import PrefillTile, Tiles, prefill_experts, tiles_for
from sglang_gemma4.models.layers.expert_layers import aligned_blocks, many_token_experts

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

HIDDEN, INNER, EXPERTS, TOPK = 2816, 704, 128, 8
Weights = tuple[torch.Tensor, torch.Tensor]


@pytest.fixture(scope="module")
def weights() -> Weights:
    torch.manual_seed(0)
    w13 = torch.randn(EXPERTS, 2 * INNER, HIDDEN, device="cuda") * HIDDEN**-0.5
    return w13, torch.randn(EXPERTS, HIDDEN, INNER, device="cuda") * INNER**-0.5


def expected(x: torch.Tensor, w13: torch.Tensor, w2: torch.Tensor, probabilities: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Expert by expert in float32."""
    out, inner = torch.zeros(x.shape, device=x.device), w2.shape[2]
    for expert in range(EXPERTS):
        token, place = (ids == expert).nonzero(as_tuple=True)
        both = x[token].float() @ w13[expert].float().T
        act = torch.nn.functional.gelu(both[:, :inner], approximate="tanh") * both[:, inner:]
        out.index_add_(0, token, probabilities[token, place, None] * (act @ w2[expert].float().T))
    return out


def routed(tokens: int, dropped: float) -> tuple[torch.Tensor, torch.Tensor]:
    top = (torch.randn(tokens, EXPERTS, device="cuda") + 0.5 * torch.randn(EXPERTS, device="cuda")).topk(TOPK)
    ids = top.indices.int().contiguous()
    ids[torch.rand(ids.shape, device="cuda") < dropped] = -1
    return torch.softmax(top.values, -1).contiguous(), ids


def few_token_experts(x: torch.Tensor, w13: torch.Tensor, w2: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return few_token_experts_counting(x, w13, w2, weights, ids, counters(x.shape[1], x.device))


def chosen_as_expected(
    logits: torch.Tensor, scale: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor, blocks: grouping.Blocks
) -> None:
    """Choices, blocks and order exactly; of equal logits the first."""
    expected_weights, expected_ids, expected = expert_routing_reference(logits, scale, TOPK)
    assert torch.equal(ids, expected_ids)
    torch.testing.assert_close(weights, expected_weights, atol=1e-6, rtol=1e-5)
    count = int(blocks.count)
    assert count == int(expected.count)
    assert torch.equal(blocks.expert[:count], expected.expert)
    assert torch.equal(blocks.row[:count], expected.row)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("tokens", [1, 2, 7, 16])
def test_routing(tokens: int, dtype: torch.dtype) -> None:
    torch.manual_seed(tokens)
    for _ in range(20):
        logits, scale = torch.randn(tokens, EXPERTS, device="cuda").to(dtype), (torch.rand(EXPERTS, device="cuda") + 0.5).to(dtype)
        chosen_as_expected(logits, scale, *expert_routing(logits, scale, TOPK))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("tokens", [1, 2, 7, 16])
def test_routed_product(tokens: int, dtype: torch.dtype) -> None:
    """The logits within their rounding; of these logits exactly the routing's choice, and the same every time."""
    torch.manual_seed(tokens)
    router, scale = (
        (torch.randn(EXPERTS, HIDDEN, device="cuda") * HIDDEN**-0.5).to(dtype),
        (torch.rand(EXPERTS, device="cuda") + 0.5).to(dtype),
    )
    done = routed_product.counter(router.device)
    for _ in range(20):
        x = torch.randn(tokens, HIDDEN, device="cuda").to(dtype)
        logits, weights, ids, blocks = routed_product.routed_product(x, router, scale, TOPK, done)
        exact = x.double() @ router.double().T
        tolerance = {torch.bfloat16: 2**-8, torch.float16: 2**-11, torch.float32: 1e-5}[dtype]
        torch.testing.assert_close(logits.double(), exact, atol=tolerance, rtol=tolerance)
        chosen_as_expected(logits, scale, weights, ids, blocks)
        for again, first in zip(routed_product.routed_product(x, router, scale, TOPK, done)[:3], (logits, weights, ids), strict=True):
            assert torch.equal(again, first)
    assert not done.any()


@pytest.mark.parametrize("together", [False, True], ids=["two launches", "one launch"])
@pytest.mark.parametrize("tokens", [1, 4, 16])
def test_a_replayed_chain_of_layers(weights: Weights, tokens: int, together: bool) -> None:
    """Router and experts launched dependently, four layers whose output is the next one's input, have the bits they have without."""
    torch.manual_seed(tokens)
    w13, w2 = (weight.to(torch.bfloat16) for weight in weights)
    router, scale = (torch.randn(EXPERTS, HIDDEN, device="cuda") * HIDDEN**-0.5).bfloat16(), torch.ones(EXPERTS, device="cuda").bfloat16()
    done = [counters(HIDDEN, w2.device) for _ in range(4)]
    chosen = [routed_product.counter(w2.device) for _ in range(4)]

    def step(x: torch.Tensor) -> torch.Tensor:
        for mine, choice in zip(done, chosen, strict=True):
            if together:
                _, routed, ids, blocks = routed_product.routed_product(x, router, scale, TOPK, choice)
            else:
                routed, ids, blocks = expert_routing(x @ router.T, scale, TOPK)
            x = few_token_experts_counting(x, w13, w2, routed, ids, mine, blocks) * 4
        return x

    inputs = [torch.randn(tokens, HIDDEN, device="cuda").bfloat16() for _ in range(4)]
    expected = [step(x) for x in inputs]
    dependent_launch.want(True)
    try:
        static, graph = inputs[0].clone(), torch.cuda.CUDAGraph()
        step(static)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            found = step(static)
        for number in range(200):
            static.copy_(inputs[number % 4])
            found.fill_(-1)
            graph.replay()
            assert torch.equal(found, expected[number % 4]), f"replay {number}"
    finally:
        dependent_launch.want(False)
    assert not any(mine.any() for mine in done)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("dropped", [0.0, 0.4])
@pytest.mark.parametrize("tokens", [1, 2, 4, 15, 16, 17, 64, 193, 320])
def test_experts(weights: Weights, tokens: int, dropped: float, dtype: torch.dtype) -> None:
    """Within the rounding of the type: of the activation, of each row's output in the grouped kernels, and of the sum."""
    torch.manual_seed(tokens)
    w13, w2 = (weight.to(dtype) for weight in weights)
    x = torch.randn(tokens, HIDDEN, device="cuda").to(dtype)
    probabilities, ids = routed(tokens, dropped)
    reference = expected(x, w13, w2, probabilities, ids)
    tolerance = {torch.bfloat16: 2e-2, torch.float16: 3e-3, torch.float32: 2e-5}[dtype]
    for kernel in (grouped_experts, few_token_experts) if tokens <= 16 else (grouped_experts,):
        torch.cuda.empty_cache()
        found = kernel(x, w13, w2, probabilities, ids)
        torch.testing.assert_close(found.float(), reference, atol=tolerance, rtol=tolerance)
        for _ in range(3):
            assert torch.equal(found, kernel(x, w13, w2, probabilities, ids)), "the same bits every time"


@pytest.mark.parametrize("tokens", [1, 16, 320])
def test_a_graph_follows_its_inputs(weights: Weights, tokens: int) -> None:
    """Captured with one routing, replayed with another."""
    w13, w2 = (weight.to(torch.bfloat16) for weight in weights)
    kernel = few_token_experts if tokens <= 16 else grouped_experts
    x = torch.randn(tokens, HIDDEN, device="cuda").to(torch.bfloat16)
    probabilities, ids = routed(tokens, 0.0)
    kernel(x, w13, w2, probabilities, ids)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = kernel(x, w13, w2, probabilities, ids)
    for seed in range(3):
        torch.manual_seed(seed)
        other_probabilities, other_ids = routed(tokens, 0.2)
        probabilities.copy_(other_probabilities)
        ids.copy_(other_ids)
        graph.replay()
        assert torch.equal(out, kernel(x, w13, w2, probabilities, ids))


@pytest.mark.parametrize("tokens", [1, 3, 16, 17, 128, 320, 2500])
@pytest.mark.parametrize("size", [16, 32, 64])
def test_rows_into_blocks(tokens: int, size: int) -> None:
    torch.manual_seed(tokens)
    _, ids = routed(tokens, 0.2)
    for by_token in {False, tokens <= size}:
        reference = grouping.expert_blocks_reference(ids, EXPERTS, size, by_token)
        found = grouping.expert_blocks(ids, EXPERTS, size, by_token)
        count = int(found.count)
        assert count == int(reference.count)
        assert torch.equal(found.expert[:count], reference.expert)
        assert torch.equal(found.row[:count], reference.row)


ORDERS: dict[str, Tiles] = {
    "ahead": (128, PrefillTile(128, 64, 8, 3, 1, 1, ahead=True), PrefillTile(256, 64, 8, 3, 16, 1, ahead=True)),
    "small": (64, PrefillTile(64, 64, 4, 3, group=8), PrefillTile(128, 64, 4, 3, group=4)),
    "few programs": (128, PrefillTile(64, 64, 4, 3, programs=2), PrefillTile(128, 64, 4, 3, group=16, programs=2)),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("dropped", [0.0, 0.4])
@pytest.mark.parametrize("tokens", [1, 129, 1024, 3001])
def test_a_chunk_s_experts(weights: Weights, tokens: int, dropped: float, dtype: torch.dtype) -> None:
    """As in a server, over SGLang's alignment, whose atomics put an expert's rows in another order each time: the same bits."""
    torch.manual_seed(tokens)
    w13, w2 = (weight.to(dtype) for weight in weights)
    x = torch.randn(tokens, HIDDEN, device="cuda").to(dtype)
    probabilities, ids = routed(tokens, dropped)
    reference = expected(x, w13, w2, probabilities, ids)
    tolerance = {torch.bfloat16: 2e-2, torch.float16: 3e-3, torch.float32: 2e-5}[dtype]
    found = many_token_experts(x, w13, w2, probabilities, ids)
    torch.testing.assert_close(found.float(), reference, atol=tolerance, rtol=tolerance)
    assert torch.equal(found, prefill_experts(x, w13, w2, probabilities, ids)), "over our own blocks"
    for _ in range(3):
        assert torch.equal(found, many_token_experts(x, w13, w2, probabilities, ids)), "the same bits every time"


@pytest.mark.parametrize("tma", [False, True])
@pytest.mark.parametrize("name", ORDERS)
def test_a_chunk_s_tiles(weights: Weights, name: str, tma: bool) -> None:
    torch.manual_seed(0)
    w13, w2 = (weight.to(torch.bfloat16) for weight in weights)
    x = torch.randn(1500, HIDDEN, device="cuda").to(torch.bfloat16)
    probabilities, ids = routed(1500, 0.1)
    tiles = ORDERS[name]
    blocks = aligned_blocks(ids, EXPERTS, tiles[0])
    found = prefill_experts(x, w13, w2, probabilities, ids, blocks, tiles, tma)
    torch.testing.assert_close(found.float(), expected(x, w13, w2, probabilities, ids), atol=2e-2, rtol=2e-2)


def test_a_chunk_that_one_expert_takes(weights: Weights) -> None:
    """And one where no row has an expert."""
    torch.manual_seed(0)
    w13, w2 = (weight.to(torch.bfloat16) for weight in weights)
    x = torch.randn(1100, HIDDEN, device="cuda").to(torch.bfloat16)
    ids = torch.full((1100, TOPK), -1, dtype=torch.int32, device="cuda")
    probabilities = torch.rand(1100, TOPK, device="cuda")
    assert (many_token_experts(x, w13, w2, probabilities, ids) == 0).all()
    ids[:, 3] = EXPERTS - 1
    found = many_token_experts(x, w13, w2, probabilities, ids)
    torch.testing.assert_close(found.float(), expected(x, w13, w2, probabilities, ids), atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize(("hidden", "inner"), [(2816, 88), (2820, 100), (64, 32)])
def test_a_chunk_s_experts_of_other_sizes(hidden: int, inner: int) -> None:
    """A rank's share of eight, rows that no descriptor takes, a small model's."""
    torch.manual_seed(0)
    x = torch.randn(1030, hidden, device="cuda").to(torch.bfloat16)
    w13 = (torch.randn(EXPERTS, 2 * inner, hidden, device="cuda") * hidden**-0.5).to(torch.bfloat16)
    w2 = (torch.randn(EXPERTS, hidden, inner, device="cuda") * inner**-0.5).to(torch.bfloat16)
    probabilities, ids = routed(1030, 0.1)
    torch.testing.assert_close(
        many_token_experts(x, w13, w2, probabilities, ids).float(), expected(x, w13, w2, probabilities, ids), atol=2e-2, rtol=2e-2
    )


def test_a_graph_of_a_chunk_follows_its_inputs(weights: Weights) -> None:
    w13, w2 = (weight.to(torch.bfloat16) for weight in weights)
    x = torch.randn(1024, HIDDEN, device="cuda").to(torch.bfloat16)
    probabilities, ids = routed(1024, 0.0)
    many_token_experts(x, w13, w2, probabilities, ids)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = many_token_experts(x, w13, w2, probabilities, ids)
    for seed in range(3):
        torch.manual_seed(seed)
        other_probabilities, other_ids = routed(1024, 0.2)
        probabilities.copy_(other_probabilities)
        ids.copy_(other_ids)
        graph.replay()
        assert torch.equal(out, many_token_experts(x, w13, w2, probabilities, ids))


def test_sglang_s_alignment_puts_each_row_once() -> None:
    """With its expert, empty places last: what computing half a block relies on."""
    for tokens in (1024, 2048, 4096, 8192, 16384):
        _, ids = routed(tokens, 0.1)
        size = tiles_for(torch.bfloat16)[0]
        blocks = aligned_blocks(ids, EXPERTS, size)
        count = int(blocks.count)
        taken = blocks.row[:count]
        assert sorted(taken[taken < ids.numel()].tolist()) == list(range(ids.numel())), "each row once"
        for expert, rows in zip(blocks.expert[:count].tolist(), taken, strict=True):
            real = rows < ids.numel()
            assert (ids.flatten()[rows[real].long()] == expert).all()
            assert not (real[1:] & ~real[:-1]).any(), "empty places last"
