"""Which rows of a prefill the layers that share KV see, and each reason to let them see all."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardMode
from sglang.srt.model_executor.runner_utils.prefill_graph import prefill_graph_scope
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

from sglang_gemma4 import patching
from sglang_gemma4.attention import second_metadata
from sglang_gemma4.models import forwards
from sglang_gemma4.models.schedule import read_rows


def batch(**given: Any) -> Any:
    """Two requests: 6 new tokens after 4, and 3 after none."""
    sound = {
        "forward_mode": ForwardMode.EXTEND,
        "extend_seq_lens_cpu": [6, 3],
        "extend_prefix_lens_cpu": [4, 0],
        "extend_logprob_start_lens_cpu": [6, 3],
        "return_logprob": False,
        "contains_last_prefill_chunk": True,
        "capture_hidden_mode": CaptureHiddenMode.NULL,
        "spec_algorithm": SpeculativeAlgorithm.NONE,
        "mm_inputs": None,
        "kv_loc_cols": None,
        "tbo_split_seq_index": None,
        "multi_item_delimiter_indices": None,
        "token_indices_to_pool": None,
        "return_pooled_hidden_states": False,
    }
    return SimpleNamespace(**sound | given)


@pytest.mark.parametrize(
    ("given", "rows"),
    [
        ({}, [5, 8]),
        ({"contains_last_prefill_chunk": False}, []),
        ({"contains_last_prefill_chunk": False, "extend_seq_lens_cpu": [8, 1], "extend_logprob_start_lens_cpu": [8, 1]}, [7, 8]),
        ({"return_logprob": True}, [5, 8]),
        ({"return_logprob": True, "contains_last_prefill_chunk": False}, []),
        ({"return_logprob": True, "extend_logprob_start_lens_cpu": [2, 3]}, [2, 3, 4, 5, 8]),
        ({"return_logprob": True, "extend_logprob_start_lens_cpu": [6, 2], "contains_last_prefill_chunk": False}, [5, 8]),
        ({"return_logprob": True, "extend_logprob_start_lens_cpu": [0, 0]}, list(range(9))),
    ],
)
def test_rows_that_are_read(given: dict[str, Any], rows: list[int]) -> None:
    spans = read_rows.of_batch(batch(**given))
    assert spans.rows == rows
    assert spans.one_each is (len(rows) == 2)
    assert spans.skip_nothing is (len(rows) == 9)


class TritonAttnBackend:
    """A stand-in with the attributes that a copy is made of."""

    dcp_size = 1

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        self.token_to_kv_pool = SimpleNamespace(dtype=dtype)
        self.kv_indptr = torch.arange(4)
        self.window_kv_indptr, self.qo_indptr = torch.arange(4), torch.arange(4)
        self.forward_metadata: Any = "of the prefill"

    def init_forward_metadata(self, forward_batch: Any) -> None:
        self.kv_indptr += 100
        self.forward_metadata = forward_batch


class Gemma4TritonAttnBackend(TritonAttnBackend):
    """Ours is a subclass."""


def other_backend(name: str) -> Any:
    return type(name, (), {"token_to_kv_pool": SimpleNamespace(dtype=torch.float32)})()


class HybridAttnBackend:
    def __init__(self, prefill: Any, decode: Any) -> None:
        self.prefill_backend, self.decode_backend = prefill, decode
        self.token_to_kv_pool = SimpleNamespace(dtype=torch.float32)

    def init_forward_metadata(self, forward_batch: Any) -> None:
        self.decode_backend.init_forward_metadata(forward_batch)


def problem(given: dict[str, Any]) -> str | None:
    return read_rows.reason_against_batch(9, batch(**given))


def on(backend: Any) -> str | None:
    return read_rows.reason_against_backend(backend, torch.float32)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, None),
        ({"capture_hidden_mode": CaptureHiddenMode.LAST}, None),
        ({"capture_hidden_mode": CaptureHiddenMode.FULL, "spec_algorithm": SpeculativeAlgorithm.FROZEN_KV_MTP}, None),
        ({"capture_hidden_mode": CaptureHiddenMode.FULL}, "hidden states of every row"),
        ({"capture_hidden_mode": CaptureHiddenMode.FULL, "spec_algorithm": SpeculativeAlgorithm.EAGLE}, "hidden states of every row"),
        ({"extend_seq_lens_cpu": None}, "on the device only"),
        ({"extend_prefix_lens_cpu": None}, "on the device only"),
        ({"extend_seq_lens_cpu": [6, 2]}, "its batch is padded"),
        ({"kv_loc_cols": slice(2)}, "a part of another one"),
        ({"tbo_split_seq_index": 1}, "a part of another one"),
        ({"multi_item_delimiter_indices": []}, "multi-item scoring"),
        ({"token_indices_to_pool": []}, "multi-item scoring"),
        ({"return_pooled_hidden_states": True}, "pooled"),
    ],
)
def test_batches_that_go_through_all_layers(given: dict[str, Any], said: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_rows, "get_server_return_hidden_states_mode", lambda: CaptureHiddenMode.NULL)
    found = problem(given)
    assert found is None if said is None else said in str(found)


def test_mtp_on_a_server_that_returns_hidden_states(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_rows, "get_server_return_hidden_states_mode", lambda: CaptureHiddenMode.FULL)
    found = problem({"capture_hidden_mode": CaptureHiddenMode.FULL, "spec_algorithm": SpeculativeAlgorithm.FROZEN_KV_MTP})
    assert found == "hidden states of every row are asked for"


def test_a_captured_prefill() -> None:
    with prefill_graph_scope(full_graph=False):
        assert problem({}) == "it is captured in a graph, whose number of rows is fixed"


@pytest.mark.parametrize("name", ["TRTLLMHAAttnBackend", "TboAttnBackend", "FlashInferAttnBackend", "IntelAMXAttnBackend"])
def test_other_backends_are_named(name: str) -> None:
    assert str(on(other_backend(name))).startswith(f"attention backend: {name} is not one of TritonAttnBackend, ")
    hybrid = HybridAttnBackend(TritonAttnBackend(), other_backend(name))
    assert str(on(hybrid)).startswith(f"attention backend: {name} is not one of ")
    with pytest.raises(TypeError, match=name):
        second_metadata.prepare(hybrid, None)


def test_keys_split_over_ranks() -> None:
    backend = TritonAttnBackend()
    backend.dcp_size = 2
    assert on(backend) == "attention backend: TritonAttnBackend splits the keys of a request over ranks"


def test_a_quantised_kv_cache() -> None:
    assert on(TritonAttnBackend()) is None
    assert on(TritonAttnBackend(torch.float8_e4m3fn)) == "the KV cache is torch.float8_e4m3fn, the model torch.float32"


def test_the_second_metadata_leaves_the_first_alone() -> None:
    backend = Gemma4TritonAttnBackend()
    second = second_metadata.prepare(backend, "of the short part")
    assert (backend.forward_metadata, second.forward_metadata) == ("of the prefill", "of the short part")
    assert backend.kv_indptr.tolist() == [0, 1, 2, 3]
    assert second.kv_indptr.tolist() == [100] * 4
    assert second.token_to_kv_pool is backend.token_to_kv_pool
    hybrid = HybridAttnBackend(backend, Gemma4TritonAttnBackend())
    both = second_metadata.prepare(hybrid, "of the short part")
    assert both.decode_backend.forward_metadata == "of the short part"
    assert hybrid.decode_backend.forward_metadata == backend.forward_metadata == "of the prefill"


def layer(**given: Any) -> Any:
    attention = SimpleNamespace(is_kv_shared_layer=given.pop("shares", True))
    return SimpleNamespace(self_attn=attention, **{"enable_moe_block": False} | given)


def model(**given: Any) -> Any:
    """Four layers, of which two share KV."""
    images = given.pop("images", None)
    config = SimpleNamespace(num_hidden_layers=4, num_kv_shared_layers=given.pop("sharing", 2), use_bidirectional_attention=images)
    layers = given.pop("layers", [layer(shares=False), layer(shares=False), layer(), layer()])
    return SimpleNamespace(config=config, layers=layers, layers_to_capture=given.pop("capture", []), pp_group=SimpleNamespace(world_size=1))


def process(monkeypatch: pytest.MonkeyPatch, **given: Any) -> None:
    sizes = {"attn_dp_size": 1, "attn_cp_size": 1, "attn_dcp_size": 1}
    parallel = SimpleNamespace(**{name: given.get(name, size) for name, size in sizes.items()})
    features = SimpleNamespace(aux_hidden_state_capture=given.get("aux"))
    deterministic = SimpleNamespace(enable_deterministic_inference=given.get("deterministic", False))
    monkeypatch.setattr(read_rows, "get_parallel", lambda: parallel)
    monkeypatch.setattr(read_rows, "get_lora", lambda: SimpleNamespace(enable_lora=given.get("lora", False)))
    monkeypatch.setattr(read_rows, "get_exec", lambda: SimpleNamespace(features=features, deterministic=deterministic))


@pytest.mark.parametrize(
    ("own", "around", "said"),
    [
        ({}, {}, None),
        ({"capture": [1]}, {}, None),
        ({"sharing": 0}, {}, "no layer of the model shares KV"),
        ({"sharing": None}, {}, "no layer of the model shares KV"),
        (
            {"images": "vision"},
            {},
            "use_bidirectional_attention is 'vision': the rows of an image see later ones, which the short part does not know",
        ),
        ({"images": None}, {}, None),
        ({"capture": [1, 2]}, {}, "hidden states are captured at layers [2], KV is shared from layer 2 on"),
        ({"capture": [4]}, {}, "hidden states are captured at layers [4], KV is shared from layer 2 on"),
        ({"layers": [layer(), layer(), layer(), layer(shares=False)]}, {}, "a layer from 2 on has keys and values of its own"),
        ({"layers": [layer()] * 3 + [layer(enable_moe_block=True)]}, {}, "a layer that shares KV has experts"),
        ({}, {"attn_dp_size": 2}, "attention is data parallel (2 ranks)"),
        ({}, {"attn_cp_size": 4}, "attention is context parallel (4 ranks)"),
        ({}, {"attn_dcp_size": 2}, "attention is decode context parallel (2 ranks)"),
        ({}, {"lora": True}, "LoRA adapters follow all rows of a batch"),
        ({}, {"deterministic": True}, "deterministic inference: a row's rounding would depend on which other rows are read"),
        ({}, {"aux": object()}, "hidden states of the last layer are kept beside captured ones"),
    ],
)
def test_models_that_prefill_through_all_layers(
    own: dict[str, Any], around: dict[str, Any], said: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    process(monkeypatch, **around)
    assert read_rows.reason_against_model(model(**own)) == said


def test_pipeline_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    process(monkeypatch)
    split = model()
    split.pp_group.world_size = 2
    assert read_rows.reason_against_model(split) == "the layers are split over 2 pipeline stages"


@pytest.mark.parametrize("mode", [ForwardMode.DECODE, ForwardMode.TARGET_VERIFY, ForwardMode.IDLE, ForwardMode.DRAFT_EXTEND_V2])
def test_other_forwards_are_left_alone_without_a_word(mode: ForwardMode, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(patching, "note", lambda patch, message: said.append(message))
    answer = forwards.fast_prefill(
        lambda *given: given, "model", None, "positions", batch(forward_mode=mode), "embeds", "per layer", "previous stage"
    )
    assert answer == ("model", None, "positions", batch(forward_mode=mode), "embeds", "per layer", "previous stage")
    assert said == []


def test_what_declines_is_said_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(patching.declare, "note", lambda patch, message: said.append(message))
    assert forwards.fast_prefill(lambda *given: "through all layers", model(sharing=0), "ids", None, batch()) == "through all layers"
    assert said == ["a prefill goes through all layers: no layer of the model shares KV"]
