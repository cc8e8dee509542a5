"""Which sizes prefill graphs have: how much they pad, and up to where a model's are worth their capture."""

from types import SimpleNamespace

import pytest

from sglang_gemma4.models.schedule.prefill_sizes import DOUBLES_UP_TO, LARGEST, SMALLEST, capture_sizes, worth_up_to
from sglang_gemma4.tiny import real_sizes


def test_the_ladder_is_this() -> None:
    assert capture_sizes(LARGEST) == [8, 16, 32, 64, 128, 256, 512, 768, 1024, 1536, 2048, 3072, 4096]


@pytest.mark.parametrize("limit", [600, 1000, 2048, LARGEST, 6000])
def test_a_third_of_a_large_batch_is_padding_at_most_and_sglang_pads_every_small_one(limit: int) -> None:
    from sglang.srt.model_executor.runner.prefill_cuda_graph_runner import _MAX_PREFILL_CUDA_GRAPH_PADDING_FACTOR

    sizes = capture_sizes(limit)
    for tokens in range(SMALLEST // 2, limit + 1):
        size = next(size for size in sizes if size >= tokens)
        assert size <= _MAX_PREFILL_CUDA_GRAPH_PADDING_FACTOR * tokens, tokens
        if tokens > DOUBLES_UP_TO:
            assert size - tokens <= size / 3, tokens


@pytest.mark.parametrize("limit", [1, 7, 8, 100, 700, 2048])
def test_the_largest_size_is_the_limit(limit: int) -> None:
    assert capture_sizes(limit)[-1] == limit
    assert min(capture_sizes(limit)) >= 1


def test_a_limit_without_tokens_is_named() -> None:
    with pytest.raises(ValueError, match="the largest prefill graph has 0 tokens"):
        capture_sizes(0)


@pytest.mark.parametrize(
    ("size", "all_layers", "fast_prefill", "two_ranks"),
    [
        ("e2b", 4096, 4096, 4096),
        ("e4b", 2048, 4096, 4096),
        ("12b", 1024, 1024, 2048),
        ("26b-a4b", 2048, 2048, 4096),
        ("31b", 512, 512, 1024),
    ],
)
def test_a_model_is_captured_up_to_where_the_card_takes_as_long_as_the_host(
    size: str, all_layers: int, fast_prefill: int, two_ranks: int
) -> None:
    """Layers that share KV are no work for the card with fast prefill; ranks share the work, and each has a host of its own."""
    config = SimpleNamespace(**real_sizes.target(size)["text_config"])
    assert worth_up_to(config) == all_layers
    assert worth_up_to(config, fast_prefill=True) == fast_prefill
    assert worth_up_to(config, ranks=2) == two_ranks


def test_a_giant_has_one_size() -> None:
    config = SimpleNamespace(**{**real_sizes.target("31b")["text_config"], "intermediate_size": 10**7})
    assert worth_up_to(config) == SMALLEST
