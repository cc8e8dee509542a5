"""Dependent launch: what Hopper's code of each kernel does before it waits for the kernel before, and who launches so."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from sglang_gemma4.kernels import dependent_launch
from sglang_gemma4.kernels.attention import few_query_attention
from sglang_gemma4.kernels.dense import few_row_linear, gated_embedding
from sglang_gemma4.kernels.experts import expert_routing, few_token_experts, grouped_experts, prefill_experts, routed_product
from sglang_gemma4.kernels.heads import centroid_argmax, head_argmax
from sglang_gemma4.kernels.norms import layer_tail, qkv_norm_rope, triple_rmsnorm
from sglang_gemma4.kernels.norms.qkv_norm_rope import TokenTiles
from sglang_gemma4.kernels.norms.row_parts import RowTiles
from sglang_gemma4.models import build
from tests.harness.gpu_compiler import compiling_for

WIDTH = 128
EPS = 1e-6
HELD, REREAD = RowTiles(rows=2, block=64, warps=1, stages=2), RowTiles(rows=1, block=256, warps=1)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """PTX by kernel of whatever is launched in a test; nothing runs."""
    ptx: dict[str, str] = {}

    def see(name: str, kernel: Any) -> None:
        ptx[name] = kernel.asm["ptx"]

    monkeypatch.setattr(dependent_launch, "reason_against", lambda device: None)
    with compiling_for(90, see, monkeypatch):
        yield ptx
    dependent_launch.want(False)


def ones(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.ones(shape, dtype=dtype)


def norms(tiles: RowTiles | None = None, width: int = WIDTH) -> None:
    triple_rmsnorm.triple_rmsnorm(ones(4, width), ones(4, width), *[ones(width) for _ in range(4)], tiles=tiles)


def norms_of_many() -> None:
    norms(HELD)


def norms_of_many_wide() -> None:
    norms(REREAD, 16 * WIDTH)


def tail(tiles: RowTiles | None = None, width: int = WIDTH) -> None:
    weights = (ones(width), ones(width), ones(width))
    layer_tail.dual_tail(ones(4, width), ones(4, width), ones(4, width), weights, ones(1), (EPS, EPS, EPS), ones(width), tiles=tiles)


def tail_of_many() -> None:
    tail(HELD)


def tail_of_many_wide() -> None:
    tail(REREAD, 16 * WIDTH)


def rope() -> None:
    qkv_norm_rope.qkv_norm_rope(ones(4, 4 * 64), torch.arange(4), ones(8, 64), ones(64), ones(64), 2, 1)


def rope_and_write(tiles: TokenTiles | None = None) -> None:
    cache, slots = ones(32, 1, 64), torch.arange(4)
    given = (ones(4, 4 * 64), torch.arange(4), ones(8, 64), ones(64), ones(64), 2, 1, EPS)
    qkv_norm_rope.qkv_norm_rope(*given, cache, cache.clone(), slots, tiles)


def rope_and_write_of_many() -> None:
    rope_and_write(TokenTiles(tokens=2, warps=2))


def embedding() -> None:
    gated_embedding.gated_embedding(ones(4, WIDTH), ones(4, WIDTH))


def attention() -> None:
    given = (ones(1, 2, 64), ones(32, 1, 64), ones(32, 1, 64), torch.tensor([0, 9], dtype=torch.int32), torch.arange(9), 1.0)
    few_query_attention.few_query_attention(*given, out=ones(1, 2, 64), window=4)


def head() -> None:
    head_argmax.head_argmax(ones(4, WIDTH), ones(512, WIDTH))


def centroids() -> None:
    centroid_argmax.centroid_argmax(ones(4, WIDTH), ones(4, 16), ones(512, WIDTH), torch.arange(512), 4)


def experts() -> None:
    ids = torch.tensor([[0, 1], [1, 2]], dtype=torch.int32)
    grouped_experts.grouped_experts(ones(2, WIDTH), ones(4, 128, WIDTH), ones(4, WIDTH, 64), ones(2, 2, dtype=torch.float32), ids)


def routing() -> None:
    expert_routing.expert_routing(ones(4, 16), ones(16), 2)


def routed() -> None:
    routed_product.routed_product(ones(4, WIDTH), ones(16, WIDTH), ones(16), 2, routed_product.counter(torch.device("cpu")))


def few_experts() -> None:
    weights, ids, blocks = expert_routing.expert_routing(ones(2, 16), ones(16), 2)
    done = few_token_experts.counters(WIDTH, ids.device)
    few_token_experts.few_token_experts(ones(2, WIDTH), ones(16, 128, WIDTH), ones(16, WIDTH, 64), weights, ids, done, blocks)


def many_experts(tma: bool = False) -> None:
    ids = torch.tensor([[0, 1], [1, 2]], dtype=torch.int32)
    given = (ones(2, WIDTH), ones(4, 128, WIDTH), ones(4, WIDTH, 64), ones(2, 2, dtype=torch.float32), ids)
    prefill_experts.prefill_experts(*given, tma=tma)


def many_experts_by_descriptors() -> None:
    many_experts(tma=True)


def product() -> None:
    few_row_linear.few_row_linear(ones(4, WIDTH * 8), ones(256, WIDTH * 8), few_row_linear.counters(256, torch.device("cpu")))


def gated_product() -> None:
    few_row_linear.few_row_linear(ones(4, WIDTH * 8), ones(256, WIDTH * 8), few_row_linear.counters(256, torch.device("cpu")), gated=True)


CALLS: list[tuple[Callable[[], None], dict[str, int]]] = [
    (norms, {"_triple_rmsnorm_kernel": 4}),
    (tail, {"_tail_kernel": 5}),
    (rope, {"_qkv_norm_rope_kernel": 4}),
    (rope_and_write, {"_qkv_norm_rope_kernel": 4}),
    (norms_of_many, {"triple_rmsnorm_rows_kernel": 2 * 4}),
    (norms_of_many_wide, {"triple_rmsnorm_rows_kernel": 0}),
    (tail_of_many, {"tail_rows_kernel": 2 * 4 + 1}),
    (tail_of_many_wide, {"tail_rows_kernel": 1}),
    (rope_and_write_of_many, {"qkv_norm_rope_tokens_kernel": 4}),
    (embedding, {"_gated_embedding_kernel": 0}),
    (attention, {"_few_query_attention_kernel": 0, "_join_kernel": 0}),
    (head, {"_head_argmax_kernel": 0, "_join_kernel": 0}),
    (centroids, {"_choose_kernel": 0, "_chosen_rows_kernel": 0, "_join_kernel": 0}),
    (experts, {"_expert_blocks_kernel": 0, "_gated_experts_kernel": 0, "_down_kernel": 0, "_sum_kernel": 0}),
    (routing, {"_expert_routing_kernel": 1}),
    (routed, {"_routed_product_kernel": 2}),
    (few_experts, {"_expert_routing_kernel": 1, "_gated_experts_kernel": 0, "_down_and_sum_kernel": 0}),
    (many_experts, {"_expert_blocks_kernel": 0, "gate_and_up_kernel": 0, "down_rows_kernel": 0, "_sum_kernel": 0}),
    (many_experts_by_descriptors, {"_expert_blocks_kernel": 0, "gate_and_up_kernel": 0, "down_rows_kernel": 0, "_sum_kernel": 0}),
    (product, {"_few_row_linear_kernel": 0}),
    (gated_product, {"_few_row_linear_kernel": 0}),
]
"""Kernels of each call, with the loads that may come before the wait: one for each of a norm's weights or its tiles
(a tail's scalar, half a head's)."""


@pytest.mark.parametrize(("call", "before"), CALLS, ids=[call.__name__ for call, _ in CALLS])
def test_only_weights_are_read_and_nothing_is_written_before_the_wait(
    compiled: dict[str, str], call: Callable[[], None], before: dict[str, int]
) -> None:
    dependent_launch.want(True)
    call()
    assert compiled.keys() == before.keys()
    for name, loads in before.items():
        early, wait, late = compiled[name].partition("griddepcontrol.wait")
        assert wait, name
        assert "griddepcontrol" not in early, "the next kernel's programs come after the wait, so only neighbours overlap"
        assert late.count("griddepcontrol.launch_dependents") == 1
        assert "griddepcontrol.wait" not in late
        assert len(re.findall(r"\bld\.global|cp\.async\.(?:c[ag]|bulk)", early)) == loads, name
        assert not re.findall(r"\bst\.global|\batom\.|\bred\.", early), name
        # No program leaves, or jumps over the wait, before it.
        assert not re.findall(r"\bret;|\bbra\b", early), name
        assert ("prefetch.global" in early) == (name == "_few_row_linear_kernel")
        assert "prefetch.global" not in late


@pytest.mark.parametrize("call", [product, gated_product])
@pytest.mark.parametrize("late", [False, True])
def test_behind_a_large_weight_the_next_launch_begins_when_it_is_read(
    compiled: dict[str, str], call: Callable[[], None], late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight = 256 * WIDTH * 8 * 2
    monkeypatch.setattr(few_row_linear, "MOST_BYTES_EARLY", weight - 1 if late else weight)
    dependent_launch.want(True)
    call()
    ptx = compiled["_few_row_linear_kernel"]
    wait, begun = ptx.index("griddepcontrol.wait"), ptx.index("griddepcontrol.launch_dependents")
    products = [found.start() for found in re.finditer(r"\bwgmma\.mma_async|\bmma\.sync", ptx)]
    stores = [found.start() for found in re.finditer(r"\bst\.global", ptx)]
    assert ptx.count("griddepcontrol.launch_dependents") == 1
    assert wait < begun < min(stores)
    assert (begun > max(products)) is late
    assert (begun < min(products)) is not late


@pytest.mark.parametrize("call", [call for call, _ in CALLS], ids=[call.__name__ for call, _ in CALLS])
def test_without_the_switch_nothing_waits(compiled: dict[str, str], call: Callable[[], None]) -> None:
    dependent_launch.want(False)
    call()
    assert compiled
    assert not any("griddepcontrol" in ptx or "prefetch.global" in ptx for ptx in compiled.values())


@pytest.mark.parametrize(
    ("capability", "said"), [((8, 9), "the GPU's compute capability is 8.9; 9.0 and later are supported"), ((9, 0), None), ((12, 0), None)]
)
def test_cards_that_cannot_are_named(capability: tuple[int, int], said: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    dependent_launch.reason_against.cache_clear()
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert dependent_launch.reason_against(torch.device("cuda", 0)) == said
    dependent_launch.want(True)
    assert dependent_launch.launch_options(torch.device("cuda", 0)) == ({"PDL": False} if said else {"PDL": True, "launch_pdl": True})
    assert dependent_launch.launch_options(torch.device("cpu")) == {"PDL": False}
    dependent_launch.want(False)
    assert dependent_launch.launch_options(torch.device("cuda", 0)) == {"PDL": False}
    dependent_launch.reason_against.cache_clear()


def test_without_a_card_the_patch_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[tuple[str, str]] = []
    monkeypatch.setattr(build, "decline", lambda *said: heard.append(said))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    build.launch_early()
    assert heard == [("dependent_launch", "tensors are on cpu")]
    assert dependent_launch.launch_options(torch.device("cpu")) == {"PDL": False}
