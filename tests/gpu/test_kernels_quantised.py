"""Products with fp8 and 4-bit weights on a card, bfloat16 rows, against float32 products with the values; and beside SGLang's own."""

from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch

from sglang_gemma4.kernels import register_products
from sglang_gemma4.kernels.dense.few_row_linear import counters, few_row_linear, few_row_linear_reference
from sglang_gemma4.kernels.experts import few_token_experts as few
from sglang_gemma4.kernels.experts import register_experts
from sglang_gemma4.kernels.experts.expert_routing import MOST_TOKENS, expert_routing
from sglang_gemma4.kernels.experts.grouped_experts import grouped_experts
from sglang_gemma4.kernels.weights import FP8, Grouped, Scaled, Weight, dequantised, scaled
from sglang_gemma4.kernels.written_out import room_for, write_out
from sglang_gemma4.models.layers.expert_layers import many_token_experts

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

SHAPES = [(8192, 2816, False), (2816, 8192, False), (2112, 2816, True), (2816, 2112, False), (256, 1536, False), (6144, 1536, True)]
HIDDEN, INNER, EXPERTS, TOPK = 2816, 704, 128, 8
TOLERANCE = 2e-2
"""Of values of about 1: one rounding to bfloat16 and float32 sums in another order; two roundings where the activation is inside."""
EXPERTS_NORM = 6e-3
"""Of the difference's norm to the reference's: the activation, each expert's row and 4-bit weights (times their scale) are rounded to
bfloat16 before they are summed, each by 2^-9 at most."""


@pytest.fixture(autouse=True)
def poisoned() -> Iterator[None]:
    """Whatever the launchers allocate begins as NaN."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def weight_of(*shape: int, per_output: bool = True) -> Scaled:
    """Levels that fill the format's range, as SGLang quantises."""
    values = torch.randn(shape, device="cuda") * shape[-1] ** -0.5
    largest = values.abs().amax(-1, keepdim=True) if per_output else values.abs().amax((-2, -1), keepdim=True)
    scale = largest / torch.finfo(FP8).max
    return scaled((values / scale).to(FP8), scale)


@pytest.mark.usefixtures("either")
@pytest.mark.parametrize("per_output", [True, False], ids=["a scale for each output", "one scale"])
@pytest.mark.parametrize("rows", [1, 3, 4, 8, 9, 16, 17, 32, 33, 64])
@pytest.mark.parametrize(("outputs", "width", "gated"), SHAPES)
def test_dense(outputs: int, width: int, gated: bool, rows: int, per_output: bool) -> None:
    torch.manual_seed(rows)
    weight = weight_of(2 * outputs if gated else outputs, width, per_output=per_output)
    x, done = torch.randn(rows, width, device="cuda").bfloat16(), counters(outputs, torch.device("cuda"))
    first = few_row_linear(x, weight, done, gated=gated)
    torch.testing.assert_close(first, few_row_linear_reference(x, weight, gated=gated), atol=TOLERANCE, rtol=TOLERANCE)
    for _ in range(20):  # whoever is last, the sum is the same, and the counters are as they were
        assert torch.equal(few_row_linear(x, weight, done, gated=gated), first)
    assert not done.any()


OF_31B = [(21504, 5376, True), (5376, 21504, False), (8192, 5376, False), (200, 5376, False)]
"""31B's FFN and queries, whose sizes blocks of 128 divide; and outputs that end within one."""


@pytest.mark.parametrize("rows", [1, 4, 16, 33, 64])
@pytest.mark.parametrize(("outputs", "width", "gated"), OF_31B)
def test_dense_in_blocks_of_128(outputs: int, width: int, gated: bool, rows: int) -> None:
    torch.manual_seed(rows)
    size = 2 * outputs if gated else outputs
    levels = (torch.randn(size, width, device="cuda") * 100).to(FP8)
    scale = (0.5 + torch.rand(-(-size // 128), -(-width // 128), device="cuda")) * width**-0.5 / 100
    weight, done = Scaled(levels, scale, 128), counters(outputs, torch.device("cuda"))
    x = torch.randn(rows, width, device="cuda").bfloat16()
    first = few_row_linear(x, weight, done, gated=gated)
    torch.testing.assert_close(first, few_row_linear_reference(x, weight, gated=gated), atol=TOLERANCE, rtol=TOLERANCE)
    for _ in range(5):
        assert torch.equal(few_row_linear(x, weight, done, gated=gated), first)
    assert not done.any()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = few_row_linear(x, weight, done, gated=gated)
    x.normal_()
    graph.replay()
    assert torch.equal(out, few_row_linear(x, weight, done, gated=gated))


@pytest.mark.usefixtures("either")
def test_every_level_is_exact() -> None:
    """Each finite byte, subnormal ones too."""
    levels = torch.arange(256, device="cuda", dtype=torch.int32).to(torch.uint8).view(FP8).view(256, 1).repeat(1, 128)
    numbers = levels[:, 0].float()
    x = torch.zeros(1, 128, device="cuda", dtype=torch.bfloat16)
    x[0, 77] = 1.0
    found = few_row_linear(x, scaled(levels, torch.full((1,), 0.5, device="cuda")), counters(256, x.device))[0].float()
    finite = numbers.isfinite()
    assert torch.equal(found[finite], 0.5 * numbers[finite])


def grouped_weight(*shape: int, group: int, zeros: bool = False) -> Grouped:
    """Every level; scales that differ; zero points from 4 to 11, or 8."""
    levels = torch.randint(0, 256, (*shape[:-1], shape[-1] // 2), dtype=torch.uint8, device="cuda")
    scale = (0.5 + torch.rand(*shape[:-1], shape[-1] // group, device="cuda")) * shape[-1] ** -0.5 / 4.6
    points = torch.randint(4, 12, (2, *shape[:-2], shape[-2] // 2, shape[-1] // group), dtype=torch.uint8, device="cuda")
    return Grouped(levels, scale.bfloat16(), points[0] | points[1] << 4 if zeros else None)


KINDS: dict[str, Callable[..., Weight]] = {
    "fp8, a scale for each output": lambda *shape: weight_of(*shape),
    "fp8, a scale for each expert": lambda *shape: weight_of(*shape, per_output=False),
    "4 bits, groups of 32": lambda *shape: grouped_weight(*shape, group=32),
    "4 bits, groups of 64": lambda *shape: grouped_weight(*shape, group=64),
}
WITH_ZEROS = "4 bits, groups of 32, zero points"


@pytest.fixture(scope="module", params=[*KINDS, WITH_ZEROS, *(f"{kind}, in registers" for kind in KINDS)])
def experts(request: pytest.FixtureRequest) -> Iterator[tuple[Weight, Weight]]:
    torch.manual_seed(5)
    zeros = partial(grouped_weight, group=32, zeros=True)
    make = zeros if request.param == WITH_ZEROS else KINDS[request.param.removesuffix(", in registers")]
    register_products.want(request.param.endswith("in registers"))
    yield make(EXPERTS, 2 * INNER, HIDDEN), make(EXPERTS, HIDDEN, INNER)
    register_products.want(False)


@pytest.fixture(params=[False, True], ids=["by Triton", "in registers"])
def either(request: pytest.FixtureRequest) -> Iterator[None]:
    """Both kernels of 4-bit weights."""
    register_products.want(request.param)
    yield
    register_products.want(False)


def values_of(weight: Weight, expert: int) -> torch.Tensor:
    """``[outputs, width]`` float32."""
    if isinstance(weight, Grouped):
        return dequantised(Grouped(weight.levels[expert], weight.scale[expert], None if weight.zeros is None else weight.zeros[expert]))
    assert isinstance(weight, Scaled)
    return dequantised(Scaled(weight.levels.view(torch.uint8)[expert].view(FP8), weight.scale[expert]))


def expected(x: torch.Tensor, w13: Weight, w2: Weight, shares: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """``[tokens, hidden]`` float32, an expert at a time."""
    out = torch.zeros(x.shape, device="cuda")
    for expert in ids.unique().tolist():
        if expert < 0:
            continue
        token, place = (ids == expert).nonzero(as_tuple=True)
        gate, up = (x[token].float() @ values_of(w13, expert).T).chunk(2, -1)
        act = torch.nn.functional.gelu(gate, approximate="tanh") * up * shares[token, place, None]
        out.index_add_(0, token, act @ values_of(w2, expert).T)
    return out


def off_by(found: torch.Tensor, reference: torch.Tensor) -> float:
    return float((found.float() - reference).norm() / reference.norm())


@pytest.mark.parametrize("dropped", [0.0, 0.4])
@pytest.mark.parametrize("tokens", [1, 2, 4, 15, 16, 17, 32, 64, 193, 320])
def test_experts(experts: tuple[Weight, Weight], tokens: int, dropped: float) -> None:
    torch.manual_seed(tokens)
    x = torch.randn(tokens, HIDDEN, device="cuda").bfloat16()
    ids = torch.rand(tokens, EXPERTS, device="cuda").topk(TOPK).indices.int().contiguous()
    ids[torch.rand(ids.shape, device="cuda") < dropped] = -1
    shares = torch.rand(tokens, TOPK, device="cuda")
    reference = expected(x, *experts, shares, ids)
    found = grouped_experts(x, *experts, shares, ids)
    assert off_by(found, reference) < EXPERTS_NORM
    assert torch.equal(found, grouped_experts(x, *experts, shares, ids))
    if tokens <= MOST_TOKENS:
        done = few.counters(HIDDEN, x.device)
        found = few.few_token_experts(x, *experts, shares, ids, done)
        assert off_by(found, reference) < EXPERTS_NORM
        assert not done.any()


@pytest.mark.parametrize("size", [8, 16, 32])
@pytest.mark.parametrize("tokens", [3, 20, 193])
@pytest.mark.parametrize("kind", KINDS)
def test_blocks_in_registers(kind: str, tokens: int, size: int) -> None:
    """Rows sorted into blocks, whatever is served."""
    torch.manual_seed(tokens)
    experts = KINDS[kind](EXPERTS, 2 * INNER, HIDDEN), KINDS[kind](EXPERTS, HIDDEN, INNER)
    x = torch.randn(tokens, HIDDEN, device="cuda").bfloat16()
    ids = torch.rand(tokens, EXPERTS, device="cuda").topk(TOPK).indices.int().contiguous()
    ids[torch.rand(ids.shape, device="cuda") < 0.2] = -1
    shares = torch.rand(tokens, TOPK, device="cuda")
    found = grouped_experts(x, *experts, shares, ids, warps=(size, *register_experts.warps_for(tokens, experts[0])))
    assert off_by(found, expected(x, *experts, shares, ids)) < EXPERTS_NORM


@pytest.mark.usefixtures("either")
@pytest.mark.parametrize("tokens", [1, 4, 32, 320])
def test_experts_of_one_of_two_ranks(tokens: int) -> None:
    """4 bits: 352 inner outputs, 11 groups."""
    torch.manual_seed(tokens)
    inner = INNER // 2
    w13, w2 = grouped_weight(EXPERTS, 2 * inner, HIDDEN, group=32), grouped_weight(EXPERTS, HIDDEN, inner, group=32)
    x = torch.randn(tokens, HIDDEN, device="cuda").bfloat16()
    ids = torch.rand(tokens, EXPERTS, device="cuda").topk(TOPK).indices.int().contiguous()
    shares = torch.rand(tokens, TOPK, device="cuda")
    reference = expected(x, w13, w2, shares, ids)
    assert off_by(grouped_experts(x, w13, w2, shares, ids), reference) < EXPERTS_NORM
    if tokens <= MOST_TOKENS:
        assert off_by(few.few_token_experts(x, w13, w2, shares, ids, few.counters(HIDDEN, x.device)), reference) < EXPERTS_NORM


WIDER = [(512, 64, False), (260, 1536, False), (1000, 5376, True), (48, 21504, False)]
"""Fewer inputs than a step, outputs that fill no tile, and many steps."""
OF_A_RANK = [(1056, 2816, True), (2816, 1056, False)]
"""26B-A4B's dense FFN on two ranks: whole groups of 32, but no whole tiles of Marlin."""


@pytest.mark.usefixtures("either")
@pytest.mark.parametrize("rows", [1, 4, 9, 16, 17, 32, 33, 64])
@pytest.mark.parametrize("group", [32, 128])
@pytest.mark.parametrize(("outputs", "width", "gated"), [*SHAPES, *OF_A_RANK, *WIDER])
def test_dense_of_four_bits(outputs: int, width: int, gated: bool, group: int, rows: int) -> None:
    torch.manual_seed(rows)
    if width % group:
        group = 32
    weight, x = grouped_weight(outputs * (2 if gated else 1), width, group=group), torch.randn(rows, width, device="cuda").bfloat16()
    done = counters(outputs, x.device)
    reference = few_row_linear_reference(x, weight, gated=gated)
    for _ in range(2):
        found = few_row_linear(x, weight, done, gated=gated)
        torch.testing.assert_close(found, reference, atol=TOLERANCE, rtol=TOLERANCE)
        assert not done.any()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = few_row_linear(x, weight, done, gated=gated)
    x.normal_()
    graph.replay()
    assert torch.equal(out, few_row_linear(x, weight, done, gated=gated))


@pytest.mark.parametrize("rows", [1, 4, 16, 33, 64])
@pytest.mark.parametrize(("outputs", "width", "gated"), [*SHAPES, *OF_A_RANK])
def test_dense_with_zero_points(outputs: int, width: int, gated: bool, rows: int) -> None:
    torch.manual_seed(rows)
    weight = grouped_weight(outputs * (2 if gated else 1), width, group=32, zeros=True)
    x, done = torch.randn(rows, width, device="cuda").bfloat16(), counters(outputs, torch.device("cuda"))
    found = few_row_linear(x, weight, done, gated=gated)
    torch.testing.assert_close(found, few_row_linear_reference(x, weight, gated=gated), atol=TOLERANCE, rtol=TOLERANCE)
    assert not done.any()


@pytest.mark.parametrize("zeros", [False, True], ids=("symmetric", "zeros"))
@pytest.mark.parametrize("group", [32, 64])
def test_weights_written_out(group: int, zeros: bool) -> None:
    """Each number as dequantised and rounded once; nothing behind them."""
    weight = grouped_weight(5, 96, 704 if group == 32 else HIDDEN, group=group, zeros=zeros)
    room = torch.full((room_for(weight) + 8,), float("nan"), device="cuda", dtype=torch.bfloat16)
    assert torch.equal(write_out(weight, room), dequantised(weight).bfloat16())
    assert room[-8:].isnan().all()


@pytest.mark.parametrize("tokens", [321, 1024, 3000])
def test_experts_of_a_chunk(tokens: int) -> None:
    """4 bits, by SGLang's alignment as in a server, and the same bits as of a checkpoint in bfloat16; in a graph too."""
    torch.manual_seed(tokens)
    w13, w2 = grouped_weight(EXPERTS, 2 * INNER, HIDDEN, group=32), grouped_weight(EXPERTS, HIDDEN, INNER, group=32)
    x = torch.randn(tokens, HIDDEN, device="cuda").bfloat16()
    ids = torch.rand(tokens, EXPERTS, device="cuda").topk(TOPK).indices.int().contiguous()
    shares = torch.rand(tokens, TOPK, device="cuda")
    room = torch.full((room_for(w13, w2),), float("nan"), device="cuda", dtype=torch.bfloat16)
    found = many_token_experts(x, w13, w2, shares, ids, room)
    assert off_by(found, expected(x, w13, w2, shares, ids)) < EXPERTS_NORM
    assert torch.equal(found, many_token_experts(x, dequantised(w13).bfloat16(), dequantised(w2).bfloat16(), shares, ids))
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        out = many_token_experts(x, w13, w2, shares, ids, room)
    for _ in range(5):
        x.normal_()
        room.fill_(float("nan"))
        graph.replay()
        assert torch.equal(out, many_token_experts(x, w13, w2, shares, ids, room))


def test_a_graph_follows_its_inputs(experts: tuple[Weight, Weight]) -> None:
    x = torch.randn(4, HIDDEN, device="cuda").bfloat16()
    logits, scale = torch.randn(4, EXPERTS, device="cuda").bfloat16(), torch.ones(EXPERTS, device="cuda").bfloat16()
    done, graph = few.counters(HIDDEN, x.device), torch.cuda.CUDAGraph()

    def layer() -> torch.Tensor:
        shares, ids, blocks = expert_routing(logits, scale, TOPK)
        return few.few_token_experts(x, *experts, shares, ids, done, blocks)

    layer()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        out = layer()
    for _ in range(20):
        x.normal_()
        logits.normal_()
        out.fill_(float("nan"))
        graph.replay()
        assert torch.equal(out, layer())


@pytest.mark.parametrize("rows", [1, 16, 64])
def test_nearer_than_sglang_s_product(rows: int) -> None:
    """Which rounds the rows to fp8 too: off by about 2^-5 a number, at random."""
    from sglang.srt.layers.quantization.fp8_utils import apply_fp8_linear

    x, weight = torch.randn(rows, HIDDEN, device="cuda").bfloat16(), weight_of(4096, HIDDEN)
    reference = x.float() @ dequantised(weight).T
    ours = few_row_linear(x, weight, counters(4096, x.device))
    theirs = apply_fp8_linear(x, weight.levels.t(), weight.scale.view(1, -1))
    assert off_by(ours, reference) < 3e-3
    assert off_by(ours, reference) < off_by(theirs, reference) < 0.1
