"""Static inputs, sizes and decline reasons of prefill graphs; what is left of a checkpoint without its towers."""

from types import SimpleNamespace

import pytest
import torch

from sglang_gemma4 import switches
from sglang_gemma4.models import towers
from sglang_gemma4.models.prefill_graph import LARGEST, GraphInputs, capture_sizes, inputs_of, reason_against

WITH = SimpleNamespace(embed_tokens_per_layer=object(), hidden_size_per_layer_input=4, config=SimpleNamespace(num_hidden_layers=3))
WITHOUT = SimpleNamespace(embed_tokens_per_layer=None)
HERE = (torch.float32, torch.device("cpu"))


def test_sizes_pad_little_and_are_few() -> None:
    sizes = capture_sizes()
    assert sizes[-1] == LARGEST
    assert len(sizes) < 30
    for tokens in range(8, LARGEST + 1):
        size = next(size for size in sizes if size >= tokens)
        assert size <= tokens * (1.5 if tokens < 64 else 1.25), tokens


@pytest.mark.parametrize("limit", [1, 7, 8, 100, 2048])
def test_the_largest_size_is_the_limit(limit: int) -> None:
    assert capture_sizes(limit)[-1] == limit
    assert min(capture_sizes(limit)) >= 1


def test_a_limit_without_tokens_is_named() -> None:
    with pytest.raises(ValueError, match="the largest prefill graph has 0 tokens"):
        capture_sizes(0)


def test_the_buffer_is_one_for_all_sizes() -> None:
    inputs = GraphInputs()
    large, small = (inputs.for_capture(WITH, tokens, *HERE) for tokens in (16, 8))
    assert large is not None
    assert small is not None
    assert large.data_ptr() == small.data_ptr()
    assert small.shape == (8, 3, 4)
    inputs.fill(torch.ones(5, 3, 4))
    assert large[:5].eq(1).all()
    assert large[5:].eq(0).all()
    with pytest.raises(ValueError, match="17 tokens after one of 16; capture the largest first"):
        inputs.for_capture(WITH, 17, *HERE)


def test_a_model_without_per_layer_embeddings_has_no_buffer() -> None:
    inputs = GraphInputs()
    assert inputs.for_capture(WITHOUT, 16, *HERE) is None
    inputs.fill(None)
    with pytest.raises(ValueError, match="the batch has them, the prefill graph was captured otherwise"):
        inputs.fill(torch.ones(5, 3, 4))


def test_a_batch_without_them_is_no_stale_replay() -> None:
    inputs = GraphInputs()
    inputs.for_capture(WITH, 16, *HERE)
    with pytest.raises(ValueError, match="the batch has none"):
        inputs.fill(None)


def test_a_model_keeps_its_inputs() -> None:
    model = SimpleNamespace()
    assert inputs_of(model) is inputs_of(model)


@pytest.mark.parametrize(
    ("stages", "saved_graphs", "said"),
    [(1, False, None), (2, False, "--pp-size 2"), (1, True, "--enable-memory-saver with SGLANG_MEMORY_SAVER_CUDA_GRAPH=1")],
)
def test_reasons(stages: int, saved_graphs: bool, said: str | None) -> None:
    reason = reason_against(stages, saved_graphs)
    assert reason is None if said is None else said in str(reason)


def test_the_switch_has_two_names_and_its_own_wins() -> None:
    ours, other = "SGLANG_GEMMA4_PREFILL_GRAPH", switches.PREFILL_GRAPH_FOR_MM
    assert not switches.is_on(ours, {})
    assert switches.is_on(ours, {other: "1"})
    assert not switches.is_on(ours, {ours: "0", other: "1"})
    assert switches.check_all({other: "perhaps"}) == [f"{other}='perhaps' is not a boolean; set it to 1 or 0, or unset it (default 0)"]


def test_what_is_left_without_towers(caplog: pytest.LogCaptureFixture) -> None:
    weights = [(name, torch.zeros(256, 1024)) for name in ("model.vision_tower.a", "embed_vision.b", "model.audio_tower.c")]
    kept = [("model.language_model.vision_tower_like", torch.zeros(1))]
    with caplog.at_level("INFO"):
        assert list(towers.without([*weights, *kept])) == kept
    assert "3 tensors of the towers left out, 3.0 MiB" in caplog.text
