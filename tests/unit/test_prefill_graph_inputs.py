"""Static inputs and the switch of prefill graphs; what is left of a checkpoint without its towers."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sglang_gemma4 import patching
from sglang_gemma4.models import towers
from sglang_gemma4.models.schedule.prefill_graph import GraphInputs, inputs_of
from sglang_gemma4.patches import load
from sglang_gemma4.patching import switches

PATCH = load("prefill_graph")
WITH = SimpleNamespace(embed_tokens_per_layer=object(), hidden_size_per_layer_input=4, config=SimpleNamespace(num_hidden_layers=3))
WITHOUT = SimpleNamespace(embed_tokens_per_layer=None)
HERE = (torch.float32, torch.device("cpu"))


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


OURS, OTHER = "SGLANG_GEMMA4_PREFILL_GRAPH", switches.PREFILL_GRAPH_FOR_MM


@pytest.mark.parametrize(
    ("given", "on"),
    [({}, None), ({OTHER: "1"}, True), ({OTHER: "0"}, False), ({OURS: "0", OTHER: "1"}, False), ({OURS: "1", OTHER: "0"}, True)],
)
def test_the_switch_has_two_names_and_its_own_wins(given: dict[str, str], on: bool | None) -> None:
    assert switches.is_on(OURS, given) is (switches.SWITCHES[OURS].default if on is None else on)


def test_a_bad_value_is_named_by_the_name_that_has_it() -> None:
    default = int(switches.SWITCHES[OURS].default)
    assert switches.check_all({OTHER: "perhaps"}) == [
        f"{OTHER}='perhaps' is not a boolean; set it to 1 or 0, or unset it (default {default})"
    ]


def test_a_patch_that_is_off_tells_the_name_it_was_turned_off_by(in_child: Callable[[Callable[[], Any]], Any]) -> None:
    def child() -> list[str]:
        found = []
        for given in ({OTHER: "0"}, {OURS: "0", OTHER: "1"}):
            (outcome,) = [one for one in patching.apply([PATCH], given) if one.name == "prefill_graph"]
            found.append(f"{outcome.state}: {outcome.reason}")
        return found

    assert in_child(child) == [f"off: {OTHER}=0", f"off: {OURS}=0"]


def test_what_is_left_without_towers(caplog: pytest.LogCaptureFixture) -> None:
    weights = [(name, torch.zeros(256, 1024)) for name in ("model.vision_tower.a", "embed_vision.b", "model.audio_tower.c")]
    kept = [("model.language_model.vision_tower_like", torch.zeros(1))]
    with caplog.at_level("INFO"):
        assert list(towers.without([*weights, *kept])) == kept
    assert "3 tensors of the towers left out, 3.0 MiB" in caplog.text
