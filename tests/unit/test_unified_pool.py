"""MTP on a unified pool: what is refused, what SGLang's checks are shown, and which graphs may hold metadata."""

from types import SimpleNamespace
from typing import Any

import pytest

from sglang_gemma4.attention import graph_metadata
from sglang_gemma4.models.config_files import PreflightError
from sglang_gemma4.models.layers import kv_write
from sglang_gemma4.patching.arguments import SeenAs
from sglang_gemma4.speculative import unified_pool


def arguments(**changes: Any) -> Any:
    """Enough of ``ServerArgs`` for SGLang's views of it."""
    fields = {
        "enable_unified_memory": True, "speculative_algorithm": "FROZEN_KV_MTP", "speculative_draft_attention_backend": None,
        "disaggregation_mode": "null", "enable_hierarchical_cache": False, "attention_backend": "triton",
        "prefill_attention_backend": None, "decode_attention_backend": None, "_resolved_overrides": [],
    }  # fmt: skip
    return SimpleNamespace(**{**fields, **changes})


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"attention_backend": "fa4"}, "not on fa4; use --attention-backend triton"),
        ({"prefill_attention_backend": "fa4"}, "not on fa4"),
        ({"speculative_draft_attention_backend": "trtllm_mha"}, "not on trtllm_mha"),
        ({"disaggregation_mode": "decode"}, "--disaggregation-mode decode was never tried"),
        ({"enable_hierarchical_cache": True}, "--enable-hierarchical-cache was never tried"),
    ],
)
def test_what_was_not_looked_into_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(PreflightError, match=says):
        unified_pool.accept_draft(arguments(**changes), lambda _: pytest.fail("SGLang's step ran"))


@pytest.mark.parametrize("changes", [{}, {"attention_backend": "intel_amx"}])
def test_sglang_s_other_checks_see_a_server_without_a_draft(changes: dict[str, Any]) -> None:
    from sglang.srt.arg_groups.model_override_base import resolved_view, resolving_view

    given = arguments(_resolved_overrides=[("hook", {"speculative_algorithm": "FROZEN_KV_MTP", "page_size": 16})], **changes)
    seen: list[Any] = []
    unified_pool.accept_draft(given, seen.append, ("intel_amx",))
    (shown,) = seen
    for view in (resolving_view(shown), resolved_view(shown)):
        assert view.speculative_algorithm is None
        assert (view.page_size, view.enable_unified_memory) == (16, True)
    assert resolved_view(given).speculative_algorithm == "FROZEN_KV_MTP"


@pytest.mark.parametrize("changes", [{"enable_unified_memory": False}, {"speculative_algorithm": "EAGLE"}, {"speculative_algorithm": None}])
def test_other_servers_are_sglang_s(changes: dict[str, Any]) -> None:
    given = arguments(**changes, disaggregation_mode="decode")
    seen: list[Any] = []
    unified_pool.accept_draft(given, seen.append)
    assert seen == [given]


def test_arguments_in_other_clothes_leave_the_rest() -> None:
    given = arguments()
    shown = SeenAs(given, attention_backend="triton", page_size=1)
    assert (shown._resolved_overrides[-1][1], shown.disaggregation_mode) == ({"attention_backend": "triton", "page_size": 1}, "null")
    with pytest.raises(AttributeError):
        _ = shown.absent


def test_a_draft_reads_by_a_plan_that_writes_nothing() -> None:
    asked: dict[str, Any] = {}
    translator = SimpleNamespace(is_translating=True, plan=lambda **given: asked.update(given) or "plan")
    batch = SimpleNamespace(req_pool_indices="rows", seq_lens="lengths", seq_lens_cpu=None, out_cache_loc="the last step's")
    assert unified_pool.read_plan(SimpleNamespace(kv_index_translator=translator), batch) == "plan"
    assert asked == {"req_pool_indices": "rows", "seq_lens": "lengths", "seq_lens_cpu": None, "write_virtual": None}
    translator.is_translating = False
    assert unified_pool.read_plan(SimpleNamespace(kv_index_translator=translator), batch) is None


def test_metadata_may_be_in_a_draft_s_graph_or_beside_a_target_s() -> None:
    from sglang.srt.layers.attention.triton_backend import TritonAttnBackend

    backend: Any = object.__new__(TritonAttnBackend)
    backend.dcp_size, backend.kv_index_translator = 1, SimpleNamespace(is_translating=True)
    assert graph_metadata.reason_against(backend, 1) is None
    assert str(graph_metadata.reason_against_metadata(backend)).startswith("a unified pool")
    assert graph_metadata.reason_against_backend(backend) is None, "whole mixed batches, whose metadata are copied into fixed tensors"
    backend.kv_index_translator.is_translating = False
    assert graph_metadata.reason_against_metadata(backend) is None


def test_keys_are_written_to_where_slots_lie_not_to_what_requests_call_them() -> None:
    """Into a real pool, whose rows are apart by all layers' keys and values."""
    import torch
    from sglang.srt.mem_cache.unified_memory_pool import MHASubPoolSpec, UnifiedKVPool, UnifiedMHATokenToKVPool

    full, sliding = (
        MHASubPoolSpec(name=name, layer_num=layers, head_num=2, head_dim=16, store_dtype=torch.float32, grow_direction=grows)
        for name, layers, grows in (("full", 1, "down"), ("swa", 3, "up"))
    )
    buffer = UnifiedKVPool(total_bytes=1 << 16, sub_pool_specs=[full, sliding], device="cpu", enable_memory_saver=False)
    pool = UnifiedMHATokenToKVPool(unified_buffer=buffer, sub_pool_name="swa")
    assert pool.k_buffer[0].stride() == (3 * 2 * 2 * 16, 16, 1)
    assert kv_write.reason_against_pool(pool, torch.float32, True) is None
    assert kv_write.reason_against_pool(pool, torch.float32, False) == "the KV pool takes physical locations only"
    assert "float16" in str(kv_write.reason_against_pool(pool, torch.float16, True))
