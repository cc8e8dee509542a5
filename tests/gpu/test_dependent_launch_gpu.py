"""Dependent launch on a card: a chain of a step's kernels, in a graph and outside, replayed many times, has the bits it has without."""

from collections.abc import Callable, Iterator

import pytest
import torch

from sglang_gemma4.kernels import dependent_launch
from sglang_gemma4.kernels.attention.few_query_attention import few_query_attention
from sglang_gemma4.kernels.dense.few_row_linear import counters, few_row_linear
from sglang_gemma4.kernels.experts.grouped_experts import grouped_experts
from sglang_gemma4.kernels.heads.head_argmax import head_argmax
from sglang_gemma4.kernels.norms.layer_tail import dual_tail
from sglang_gemma4.kernels.norms.qkv_norm_rope import qkv_norm_rope
from sglang_gemma4.kernels.norms.triple_rmsnorm import triple_rmsnorm

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

LAYERS, WIDTH, INNER, EXPERTS, HEADS, DIM = 6, 1024, 512, 16, 4, 256
EPS = (1e-6, 1e-6, 1e-6)


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    yield
    dependent_launch.want(False)


def random(*shape: int) -> torch.Tensor:
    return (torch.randn(shape, device="cuda") / shape[-1] ** 0.5).bfloat16()


def chain(rows: int) -> Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
    """A step in the order and with the kernels of a layer of 26B-A4B, weights of layers far apart; from hidden states to tokens."""
    torch.manual_seed(rows)
    every = [
        {
            "qkv": random(3 * HEADS * DIM, WIDTH),
            "o": random(WIDTH, HEADS * DIM),
            "gate_up": random(2 * INNER, WIDTH),
            "down": random(WIDTH, INNER),
            "w13": random(EXPERTS, 2 * INNER, WIDTH),
            "w2": random(EXPERTS, WIDTH, INNER),
            "keys": random(rows * 512, HEADS, DIM),
            "norms": 1 + random(8, WIDTH),
            "heads": 1 + random(2, DIM),
        }
        for _ in range(LAYERS)
    ]
    done = [[counters(weight.shape[0], weight.device) for weight in (one["qkv"], one["o"], one["gate_up"], one["down"])] for one in every]
    head, angles = random(32768, WIDTH), torch.randn(64, DIM, device="cuda")
    indptr = torch.arange(rows + 1, device="cuda", dtype=torch.int32) * 512
    indices = torch.randperm(rows * 512, device="cuda")
    positions = torch.arange(rows, device="cuda")
    ids = torch.stack([torch.randperm(EXPERTS, device="cuda")[:4] for _ in range(rows)]).int()
    routed = torch.rand(rows, 4, device="cuda")

    def step(hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        residual, normed = hidden.clone(), hidden
        for one, counts in zip(every, done, strict=True):
            norms, out = one["norms"], torch.empty(rows, HEADS, DIM, device="cuda", dtype=torch.bfloat16)
            qkv = few_row_linear(normed, one["qkv"], counts[0])
            q, _, _ = qkv_norm_rope(qkv, positions, angles, one["heads"][0], one["heads"][1], HEADS, HEADS)
            few_query_attention(q, one["keys"], one["keys"], indptr, indices, DIM**-0.5, out=out)
            attended = few_row_linear(out.view(rows, -1), one["o"], counts[1])
            dense, residual, _, sparse = triple_rmsnorm(attended, residual, *norms[:4])
            dense = few_row_linear(few_row_linear(dense, one["gate_up"], counts[2], gated=True), one["down"], counts[3])
            chosen = grouped_experts(sparse, one["w13"], one["w2"], routed, ids)
            residual, after = dual_tail(dense, chosen, residual, (norms[4], norms[5], norms[6]), one["heads"][0, :1], EPS, norms[7])
            assert after is not None
            normed = after
        return normed, head_argmax(normed, head)[0]

    return step


@pytest.mark.parametrize("rows", [1, 4, 16])
def test_every_replay_has_the_bits_of_kernels_one_after_the_other(rows: int) -> None:
    step = chain(rows)
    inputs = [random(rows, WIDTH) for _ in range(4)]
    dependent_launch.want(False)
    expected = [[each.clone() for each in step(hidden)] for hidden in inputs]
    assert not torch.equal(expected[0][0], expected[1][0])
    dependent_launch.want(True)
    if dependent_launch.reason_against(inputs[0].device) is not None:
        pytest.skip("this GPU launches kernels one after the other")
    for hidden, wanted in zip(inputs, expected, strict=True):
        for found, right in zip(step(hidden), wanted, strict=True):
            assert torch.equal(found, right), "outside a graph"
    static, graph = inputs[0].clone(), torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        results = step(static)
    for number in range(400):
        static.copy_(inputs[number % 4])
        for result in results:
            result.fill_(-1)
        graph.replay()
        for found, right in zip(results, expected[number % 4], strict=True):
            assert torch.equal(found, right), f"replay {number}"


def test_the_chain_is_shorter(record_property: Callable[[str, object], None]) -> None:
    """The whole chain in a graph: not slower. The numbers are in the test's report; an engine's are in runs/."""
    step, hidden, times = chain(4), random(4, WIDTH), {}
    for wanted in (False, True):
        dependent_launch.want(wanted)
        step(hidden)
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            step(hidden)
        rounds = []
        for _ in range(20):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            for _ in range(10):
                graph.replay()
            end.record()
            end.synchronize()
            rounds.append(begin.elapsed_time(end) * 100)
        times[wanted] = sorted(rounds)[10]
    print(f"a chain of {LAYERS} layers, us by dependent launch: {times}")
    record_property("microseconds", times)
    if dependent_launch.reason_against(hidden.device) is None:
        assert times[True] < 1.02 * times[False]
