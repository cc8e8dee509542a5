"""4-bit weights of many rows on a Hopper, against float32 products with their values."""

from collections.abc import Iterator

import pytest
import torch

from sglang_gemma4.kernels import warpgroup_products
from sglang_gemma4.kernels.experts import chunk_experts
from sglang_gemma4.kernels.warpgroup_products import Tile
from sglang_gemma4.models.layers.expert_layers import chunk_of_four_bits
from tests.gpu.test_kernels_quantised import EXPERTS, EXPERTS_NORM, HIDDEN, INNER, TOPK, expected, grouped_weight, off_by

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or warpgroup_products.reason_against_card(torch.device("cuda", 0)) is not None, reason="needs a Hopper"
)


@pytest.fixture(autouse=True)
def poisoned() -> Iterator[None]:
    """Whatever the launchers allocate begins as NaN."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("tile", [Tile(32), Tile(64), Tile(64, ahead=4), Tile(64, stages=3, ahead=1)], ids=str)
@pytest.mark.parametrize("group", [32, 64])
@pytest.mark.parametrize(("tokens", "dropped"), [(5, 0.0), (321, 0.3), (2048, 0.0), (4096, 0.0)])
def test_chunks(tokens: int, dropped: float, group: int, tile: Tile) -> None:
    """By blocks of ours and of SGLang's, in whatever order those have an expert's rows; and as a graph replays it."""
    torch.manual_seed(tokens)
    experts = grouped_weight(EXPERTS, 2 * INNER, HIDDEN, group=group), grouped_weight(EXPERTS, HIDDEN, INNER, group=group)
    x = torch.randn(tokens, HIDDEN, device="cuda").bfloat16()
    ids = torch.rand(tokens, EXPERTS, device="cuda").topk(TOPK).indices.int().contiguous()
    ids[torch.rand(ids.shape, device="cuda") < dropped] = -1
    shares = torch.rand(tokens, TOPK, device="cuda")
    reference = expected(x, *experts, shares, ids)
    found = chunk_experts.chunk_experts(x, *experts, shares, ids, tile=tile)
    assert off_by(found, reference) < EXPERTS_NORM
    assert torch.equal(chunk_of_four_bits(x, *experts, shares, ids, tile), found)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = chunk_experts.chunk_experts(x, *experts, shares, ids, tile=tile)
    x.normal_()
    graph.replay()
    assert torch.equal(out, chunk_experts.chunk_experts(x, *experts, shares, ids, tile=tile))
