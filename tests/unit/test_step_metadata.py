"""Which steps derive their metadata inside their graphs, and that a chain's verify steps have no mask, on SGLang's own backend class."""

import importlib
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sglang_gemma4.attention.verify import VerifyAttention
from sglang_gemma4.models import triton_metadata
from tests.unit.test_triton_window import WINDOW, backend, kinds


@pytest.fixture(scope="module", autouse=True)
def sglang_imported() -> None:
    importlib.import_module("sglang.srt.layers.attention.triton_backend")


def mode(name: str) -> Any:
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    return ForwardMode[name]


def target(algorithm: str = "FROZEN_KV_MTP", topk: int = 1, tokens: int = 4, ours: bool = True, **changes: Any) -> Any:
    """A target's backend after the patch has seen it; its steps are 3."""
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    made = backend(kinds()[1])
    made.topk, made.num_draft_tokens, made.speculative_num_steps = topk, tokens, 3
    made._verify_mask, made.verify_splitkv_fwd = None, VerifyAttention(topk) if ours else None
    runner = SimpleNamespace(
        is_draft_worker=False, spec_algorithm=SpeculativeAlgorithm[algorithm],
        model_config=SimpleNamespace(hf_config=SimpleNamespace(architectures=["Gemma4ForConditionalGeneration"], model_type="gemma4")),
    )  # fmt: skip
    for name, value in changes.items():
        setattr(runner, name, value)
    triton_metadata.take(made, runner)
    return made


def allocated(made: Any) -> Any:
    """After ``init_cuda_graph_state`` for up to 4 requests of 4 tokens."""
    original: Any = vars(type(made).__mro__[1])["init_cuda_graph_state"]
    triton_metadata.allocate(lambda backend, *args: original(backend, *args), made, 4, 16)
    return made


def test_a_chain_has_no_mask() -> None:
    made = allocated(target())
    mask = made.verify_mask
    assert (mask.mode.name, mask.is_read, mask.buffer.numel()) == ("QLEN_ONLY", False, 4 * 4 * 4)
    assert (made.is_draft_runner, made.max_context_len) == (False, 64)
    assert made.cuda_graph_kv_indices.numel() == 4 * 64, "SGLang's has 16 times 64"
    assert made.cuda_graph_window_kv_indices.numel() >= 4 * WINDOW
    assert made.verify_splitkv_fwd.chain_kernel.__module__.startswith("sglang."), "for what ours does not take"
    metadata = SimpleNamespace(custom_mask=mask.buffer)
    triton_metadata.unmask(metadata, made, 1, mode("DECODE"))
    assert metadata.custom_mask is mask.buffer
    triton_metadata.unmask(metadata, made, 1, mode("TARGET_VERIFY"), None, None)
    assert metadata.custom_mask is None
    made.forward_metadata = SimpleNamespace(custom_mask=mask.buffer)
    triton_metadata.unmask_eager(None, made, SimpleNamespace(forward_mode=mode("EXTEND")))
    assert made.forward_metadata.custom_mask is mask.buffer
    triton_metadata.unmask_eager(None, made, SimpleNamespace(forward_mode=mode("TARGET_VERIFY")))
    assert made.forward_metadata.custom_mask is None


@pytest.mark.parametrize(
    "changes",
    [{"topk": 4}, {"tokens": 6}, {"algorithm": "NGRAM"}, {"is_draft_worker": True}, {"ours": False}],
    ids=["tree", "wider", "ngram", "draft", "verify_attention off"],
)
def test_a_tree_keeps_its_mask(changes: dict[str, Any]) -> None:
    made = target(**changes)
    made.is_draft_runner = False
    mask = allocated(made).verify_mask
    assert mask.is_read
    assert made.cuda_graph_kv_indices.numel() == 16 * 64
    metadata = SimpleNamespace(custom_mask=mask.buffer)
    triton_metadata.unmask(metadata, made, 1, mode("TARGET_VERIFY"))
    assert metadata.custom_mask is mask.buffer
    calls: list[Any] = []
    triton_metadata.verify_tables(lambda *given: calls.append(given), made, None, 1, None, "spec", None)
    assert [given[4] for given in calls] == ["spec"]


def test_a_model_of_another_kind_is_left_alone() -> None:
    other = SimpleNamespace(hf_config=SimpleNamespace(architectures=["LlamaForCausalLM"], model_type="llama"))
    made = target(model_config=other)
    made.is_draft_runner = False
    assert allocated(made).verify_mask.is_read
    replayed: list[Any] = []
    triton_metadata.decode_tables(lambda *given: replayed.append(given), made, None, 1, None, None)
    assert len(replayed) == 1


class Runner(SimpleNamespace):
    """SGLang's decode runner, as far as the patch reads it."""


Runner.__name__ = "DecodeCudaGraphRunner"


def runner(**changes: Any) -> Any:
    flags: dict[str, Any] = {
        "enable_two_batch_overlap": False,
        "enable_pdmux": False,
        "ragged_verify_mode": False,
        "is_encoder_decoder": False,
    }
    flags |= {"_metadata_glue": None, "_early_verify_metadata": None, "model_runner": SimpleNamespace(lora_manager=None)}
    return Runner(**{**flags, **changes})


def step(name: str, spec_info: Any = None) -> Any:
    rows = torch.ones(1, dtype=torch.int64)
    return SimpleNamespace(
        forward_mode=mode(name), spec_info=spec_info, batch_size=1, seq_lens=rows, req_pool_indices=rows, out_cache_loc=rows,
        kv_loc_plan=None,
    )  # fmt: skip


def captured(made: Any, graphs: Any, batch: Any) -> list[str]:
    """What happens in a capture, and then in a replay."""
    made.kv_index_translator = SimpleNamespace(is_translating=False)
    seen: list[str] = []
    made._apply_cuda_graph_metadata = lambda **_: seen.append("recorded")
    triton_metadata.record(lambda *_: seen.append("marked"), graphs, made, batch)
    triton_metadata.replay(lambda *_: seen.append("prepared"), graphs)
    return seen


@pytest.mark.parametrize("name", ["TARGET_VERIFY", "DECODE"])
def test_the_graph_holds_its_metadata(name: str) -> None:
    """They are recorded before SGLang marks in the graph that the scheduler's tables were read."""
    assert captured(target(), runner(), step(name)) == ["recorded", "marked"]


@pytest.mark.parametrize(
    ("changes", "name", "spec_info"),
    [
        ({"_metadata_glue": object()}, "DECODE", None),
        ({"_early_verify_metadata": object()}, "TARGET_VERIFY", None),
        ({"ragged_verify_mode": True}, "TARGET_VERIFY", None),
        ({"enable_pdmux": True}, "DECODE", None),
        ({"model_runner": SimpleNamespace(lora_manager=SimpleNamespace(attn_dp_enabled=True))}, "DECODE", None),
        ({}, "DECODE", object()),
        ({}, "DRAFT_EXTEND_V2", None),
    ],
)
def test_what_another_way_prepares_stays_outside(changes: dict[str, Any], name: str, spec_info: Any) -> None:
    assert captured(target(), runner(**changes), step(name, spec_info)) == ["marked", "prepared"]


def test_a_tree_s_steps_and_a_unified_pool_s_stay_outside() -> None:
    assert captured(target(topk=4), runner(), step("TARGET_VERIFY")) == ["marked", "prepared"]
    made = target()
    seen: list[str] = []
    made.kv_index_translator = SimpleNamespace(is_translating=True)
    made._apply_cuda_graph_metadata = lambda **_: seen.append("recorded")
    triton_metadata.record(lambda *_: seen.append("marked"), graphs := runner(), made, step("DECODE"))
    triton_metadata.replay(lambda *_: seen.append("prepared"), graphs)
    assert seen == ["marked", "prepared"]


def test_a_pool_that_maps_in_a_way_of_its_own_is_named() -> None:
    from sglang.srt.mem_cache.base_swa_memory_pool import BaseSWAKVPool

    from sglang_gemma4.attention import step_metadata

    made = target()
    made.kv_index_translator = SimpleNamespace(is_translating=False)
    rings = type("Rings", (BaseSWAKVPool,), {})
    rings.__abstractmethods__ = frozenset()  # type: ignore[attr-defined]
    made.token_to_kv_pool = object.__new__(rings)
    assert step_metadata.reason_against(made) == "Rings maps its slots in a way of its own"
    made.token_to_kv_pool = SimpleNamespace(full_to_swa_index_mapping=torch.zeros(4, dtype=torch.int32))
    assert step_metadata.reason_against(made) == "SimpleNamespace maps its slots by torch.int32"
