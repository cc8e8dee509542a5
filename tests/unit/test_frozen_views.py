"""Views of the target's KV: what they set on real backends, and that all of it comes back."""

import importlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_gemma4.speculative import views, workers

SCRIPTS = Path(__file__).parents[2] / "crash_repro"
CONTEXT = 24


@pytest.fixture(scope="module")
def flash() -> Any:
    """SGLang's FlashAttention backend as the draft's runner builds it, and the target's pool."""
    import sgl_kernel  # type: ignore[import-untyped,unused-ignore]
    import torch

    sgl_kernel.merge_state_v2 = None  # imported by the backend, called for topk > 1 only
    from sglang.srt.layers.attention import flashattention_backend as module

    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPTS))  # the scripts import each other by their bare names
        fa4_view: Any = importlib.import_module("crash_repro.fa4_view")
    slots = torch.arange(CONTEXT)
    pool = fa4_view._target_pool(slots, slots)
    return SimpleNamespace(backend=fa4_view._draft_backend(module, slots[None].int(), pool), pool=pool)


def state(backend: Any) -> tuple[Any, ...]:
    return backend.token_to_kv_pool, backend.use_sliding_window_kv_pool, backend._kv_shard_pool


def test_flash_attention_sees_the_sliding_pool_and_forgets_it(flash: Any) -> None:
    before = state(flash.backend)
    assert before[1] is False
    with views.target_view(flash.backend, flash.pool):
        inside = state(flash.backend)
        assert inside[:2] == (flash.pool, True)
        with views.target_view(flash.backend, flash.pool):
            assert state(flash.backend) == inside
        assert state(flash.backend) == inside, "an inner view gives back what the outer one set"
    assert state(flash.backend) == before


def test_a_view_is_undone_after_an_error(flash: Any) -> None:
    before = state(flash.backend)
    with pytest.raises(KeyError), views.target_view(flash.backend, flash.pool):
        raise KeyError
    assert state(flash.backend) == before


def test_graph_buffers_are_those_of_a_model_with_a_window(flash: Any) -> None:
    """Allocated when the state is made, not when a first batch needs them: a captured graph keeps their addresses."""
    made = []

    def init(runner: Any, worker: Any) -> None:
        worker.draft_attn_backend.init_cuda_graph_state(4, 4)
        made.append(dict(worker.draft_attn_backend.decode_cuda_graph_metadata))

    worker = SimpleNamespace(draft_attn_backend=flash.backend, kv_context=SimpleNamespace(target_token_to_kv_pool=flash.pool))
    workers.capture_in_view(init, None, worker)
    init(None, worker)
    with_view, without = made
    assert with_view["swa_page_table"].shape == (4, flash.backend.max_num_pages)
    assert "swa_page_table" not in without


def test_a_pair_is_swapped_inside_too(flash: Any) -> None:
    from sglang.srt.layers.attention.hybrid_attn_backend import HybridAttnBackend

    class Gemma4CpuAttention:  # by name, as adapters are found
        token_to_kv_pool = "the draft's"

    pair = object.__new__(HybridAttnBackend)
    pair.prefill_backend, pair.decode_backend, pair.token_to_kv_pool = flash.backend, Gemma4CpuAttention(), "the draft's"
    before = state(flash.backend)
    with views.target_view(pair, flash.pool):
        assert pair.token_to_kv_pool is pair.decode_backend.token_to_kv_pool is flash.backend.token_to_kv_pool is flash.pool
        assert flash.backend.use_sliding_window_kv_pool
    assert (pair.token_to_kv_pool, pair.decode_backend.token_to_kv_pool) == ("the draft's", "the draft's")
    assert "token_to_kv_pool" not in vars(pair.decode_backend), "what a class gave is not left on the object"
    assert state(flash.backend) == before


def test_kept_sliding_pools_and_index_updaters_follow(flash: Any) -> None:
    class FlashInferAttnBackend:
        def __init__(self) -> None:
            self.token_to_kv_pool: Any = "the draft's"
            self.use_sliding_window_kv_pool = False
            self._swa_kv_pool: Any = None
            self.indices_updater_decode = SimpleNamespace(_swa_kv_pool=None)

    class TRTLLMHAAttnBackend(FlashInferAttnBackend):
        def __init__(self) -> None:
            super().__init__()
            self.kv_index_translator = SimpleNamespace(is_translating=False)
            self._swa_full_to_swa_mapping: Any = None

    for backend in (FlashInferAttnBackend(), TRTLLMHAAttnBackend()):
        with views.target_view(backend, flash.pool):
            assert backend._swa_kv_pool is backend.indices_updater_decode._swa_kv_pool is flash.pool
            if isinstance(backend, TRTLLMHAAttnBackend):
                assert backend._swa_full_to_swa_mapping is flash.pool.full_to_swa_index_mapping
        assert backend._swa_kv_pool is backend.indices_updater_decode._swa_kv_pool is None


def test_an_unknown_backend_is_refused_by_name(flash: Any) -> None:
    class XPUAttentionBackend:
        token_to_kv_pool = None

    worker = SimpleNamespace(kv_context=SimpleNamespace(target_token_to_kv_pool=flash.pool))
    with pytest.raises(views.UnknownBackendError, match=r"XPUAttentionBackend is not known here.*--attention-backend triton or trtllm_mha"):
        workers.refuse_unknown(XPUAttentionBackend(), worker)


def test_every_name_is_one_that_gemma4_may_have() -> None:
    from sglang_gemma4.diagnostics.preflight import ATTENTION_BACKENDS

    assert set(views.NAMES) <= set(ATTENTION_BACKENDS)


def test_a_draft_whose_scales_were_left_out_takes_the_target_s() -> None:
    import torch

    target, draft = torch.nn.Module(), torch.nn.Module()
    for name in ("k_scale", "v_scale"):
        setattr(target, name, torch.nn.Parameter(torch.tensor(0.5), requires_grad=False))
        setattr(target, f"{name}_float", 0.5)
        setattr(draft, name, None)
    views.share_kv_scales(target, draft)
    assert float(draft.k_scale) == draft.v_scale_float == 0.5


@pytest.mark.parametrize("quantised", [False, True])
def test_scales_of_the_layer_that_wrote_the_kv(quantised: bool) -> None:
    """A draft's layer reads with the target's scales, also where it has parameters for its own, and sees later changes."""
    import torch

    target, draft = torch.nn.Module(), torch.nn.Module()
    target.k_scale = torch.nn.Parameter(torch.tensor(0.5), requires_grad=False)
    target.v_scale, target.k_scale_float, target.v_scale_float = None, 0.5, None
    for name in ("k_scale", "v_scale"):
        setattr(draft, name, torch.nn.Parameter(torch.tensor(1.0), requires_grad=False) if quantised else None)
        setattr(draft, f"{name}_float", 1.0)
    views.share_kv_scales(target, draft)
    assert float(draft.k_scale) == draft.k_scale_float == 0.5
    target.k_scale.data.fill_(0.25)
    assert float(draft.k_scale) == 0.25
    assert draft.v_scale is draft.v_scale_float is draft.quant_method is None, "the backend takes the number of a layer that has a scale"
