"""A verify step of one token against SGLang's: the same tree from constants, the same tokens without walking it."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sglang_gemma4.speculative import plain_step
from sglang_gemma4.speculative.plain_step import Rows

VOCABULARY, HIDDEN, REQUESTS = 29, 4, 3


class Mask:
    """In the place of a backend's ``VerifyMask``."""

    def __init__(self, requests: int) -> None:
        self.buffer, self.requests = torch.zeros(5 * requests, dtype=torch.uint8), requests

    def fits(self, requests: int) -> bool:
        return requests <= self.requests


def worker(mask: Mask | None = None) -> Any:
    """Its target's logits are those of ``batch``'s ``logits``."""
    backend = SimpleNamespace(verify_mask=mask, max_context_len=64)
    config = SimpleNamespace(hf_config=SimpleNamespace(), hf_text_config=SimpleNamespace())
    runner = SimpleNamespace(attn_backend=backend, watermark_state=None, model_config=config)

    def forward(batch: None, forward_batch: Any, is_verify: bool, pp_proxy_tensors: None = None) -> Any:
        assert is_verify
        return SimpleNamespace(logits_output=forward_batch, routed_experts_output=None, indexer_topk_output=None)

    target = SimpleNamespace(model_runner=runner, forward_batch_generation=forward)
    return SimpleNamespace(
        device="cpu", topk=1, target_worker=target, _target_worker=target, req_to_token_pool=None, plan_stream=None, backend=backend
    )


def batch(**given: Any) -> Any:
    """Greedy requests of a decode batch that nothing is asked of."""
    generator = torch.Generator().manual_seed(7)
    sampling = {"is_all_greedy": True, "acc_additive_penalties": None, "acc_scaling_penalties": None, "logit_bias": None}
    info = SimpleNamespace(**{name: given.pop(name, value) for name, value in sampling.items()}, has_watermark_candidates=False)
    for name in [name for name in given if name.startswith("_")]:
        setattr(info, name, given.pop(name))
    fields = {
        "spec_info": SimpleNamespace(bonus_tokens=torch.randint(VOCABULARY, (REQUESTS,), generator=generator)),
        "forward_mode": SimpleNamespace(is_idle=lambda: False),
        "seq_lens": torch.tensor([7, 31, 2]),
        "seq_lens_cpu": None,
        "seq_lens_sum": None,
        "sampling_info": info,
        "device": "cpu",
        **dict.fromkeys(("has_grammar", "return_logprob"), False),
        **dict.fromkeys(("req_pool_indices", "input_ids", "out_cache_loc", "hisparse_coordinator", "mamba_track_indices")),
        "logits": torch.randn(REQUESTS, VOCABULARY, generator=generator),
        "hidden": torch.randn(REQUESTS, HIDDEN, generator=generator),
        "enable_overlap": True,
    }
    return SimpleNamespace(**{**fields, **given})


def prepare(_verify_input: Any, _pool: Any, batch: Any, _target_worker: Any) -> tuple[Any, bool]:
    """In the place of ``eagle_prepare_for_verify``; what it returns is also the stand-in target's output."""
    return SimpleNamespace(next_token_logits=batch.logits.clone(), hidden_states=batch.hidden), True


@pytest.mark.parametrize("mask", [None, Mask(REQUESTS), Mask(REQUESTS - 1)], ids=["no buffer", "buffer", "buffer too small"])
@pytest.mark.parametrize("lengths", [{}, {"seq_lens_cpu": torch.tensor([7, 31, 2])}, {"seq_lens_sum": 40}], ids=["unknown", "host", "sum"])
def test_the_input_is_stocks(mask: Mask | None, lengths: dict[str, Any]) -> None:
    from sglang.srt.speculative.eagle_worker_v2 import EAGLEWorkerV2
    from sglang.srt.speculative.spec_info import SpecInputType

    given, made = batch(**lengths), worker(mask)
    stock = EAGLEWorkerV2._build_trivial_verify_input(made, given)
    expected = {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in vars(stock).items()}
    if mask is not None:
        mask.buffer.zero_()
    found = vars(plain_step.verify_input(Rows.make(5, "cpu"), given, made.backend))
    assert found.pop("spec_input_type") == SpecInputType.FROZEN_KV_MTP_VERIFY
    del expected["spec_input_type"]
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if isinstance(value, torch.Tensor):
            assert found[name].dtype == value.dtype, name
            assert found[name].tolist() == value.tolist(), name
        else:
            assert found[name] == value, name


def test_constants_are_made_once_and_a_mask_is_filled_once() -> None:
    rows, mask = Rows.make(5, "cpu"), Mask(REQUESTS)
    backend = worker(mask).backend
    first, second = (plain_step.verify_input(rows, batch(), backend) for _ in range(2))
    assert mask.buffer.all()
    for name in ("retrieve_index", "retrieve_next_token", "retrieve_next_sibling", "custom_mask"):
        assert getattr(first, name).data_ptr() == getattr(second, name).data_ptr()
    mask.buffer.zero_()
    plain_step.verify_input(rows, batch(), backend)
    assert not mask.buffer.any(), "not written again"
    backend.verify_mask = Mask(REQUESTS)  # graphs were captured anew
    plain_step.verify_input(rows, batch(), backend)
    assert backend.verify_mask.buffer.all()


def test_a_greedy_step_is_stocks_verify(monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt.speculative import eagle_utils, eagle_worker_common

    for module in (eagle_utils, eagle_worker_common):
        monkeypatch.setattr(module, "eagle_prepare_for_verify", prepare)
    monkeypatch.setattr(eagle_worker_common, "commit_mamba_states_after_verify", lambda *args, **kwargs: None)
    monkeypatch.setattr(eagle_utils, "get_spec", lambda: SimpleNamespace(speculative_use_rejection_sampling=False))
    rows, given, made = Rows.make(5, "cpu"), batch(), worker()
    assert plain_step.is_largest_logit(made, given)
    given.spec_info = plain_step.verify_input(rows, given, made.backend)
    expected = eagle_worker_common.run_eagle_verify(
        given,
        target_worker=made.target_worker,
        req_to_token_pool=None,
        token_to_kv_pool_allocator=SimpleNamespace(get_kvcache=lambda: None),
        plan_stream=None,
        plan_stream_ctx=nullcontext(),
        topk=1,
        num_draft_tokens=1,
        device="cpu",
        metadata_ready_pre_pad=False,
        finalize_tree_path=True,
    )
    found = plain_step.verify(made, given, rows)
    for name in ("next_token_ids", "accept_lens", "accept_index", "new_seq_lens"):
        assert getattr(found, name).tolist() == getattr(expected, name).tolist(), name
    assert found.next_draft_input.bonus_tokens.tolist() == expected.next_draft_input.bonus_tokens.tolist()
    assert found.speculative_num_draft_tokens == expected.speculative_num_draft_tokens == 1
    assert found.can_run_cuda_graph == expected.can_run_cuda_graph is True
    assert found.accept_lens.is_cpu
    unsaid = {field for field, value in vars(expected).items() if value is None} ^ {
        name for name, value in vars(found).items() if value is None
    }
    assert unsaid <= {"prepared_draft_extend_inputs"}


@pytest.mark.parametrize(
    "asked",
    [
        {"is_all_greedy": False},
        {"acc_additive_penalties": torch.ones(REQUESTS, VOCABULARY)},
        {"acc_scaling_penalties": torch.ones(REQUESTS, VOCABULARY)},
        {"logit_bias": torch.ones(REQUESTS, VOCABULARY)},
        {"_sglang_gemma4_counted": object()},
        {"has_grammar": True},
        {"return_logprob": True},
        {"hisparse_coordinator": object()},
        {"forward_mode": SimpleNamespace(is_idle=lambda: True)},
    ],
    ids=lambda asked: next(iter(asked)),
)
def test_what_is_asked_for_beyond_the_largest_logit_is_stocks(asked: dict[str, Any]) -> None:
    assert not plain_step.is_largest_logit(worker(), batch(**asked))


def test_so_are_simulated_tokens_watermarks_and_plan_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt.speculative import spec_utils

    planned, marked = worker(), worker()
    planned.plan_stream = object()
    marked.target_worker.model_runner.watermark_state = object()
    assert not plain_step.is_largest_logit(planned, batch())
    assert not plain_step.is_largest_logit(marked, batch())
    monkeypatch.setattr(spec_utils, "SIMULATE_ACC_LEN", 1.0)
    monkeypatch.setattr(spec_utils, "SIMULATE_ACC_TOKEN_MODE", "fixed")
    assert not plain_step.is_largest_logit(worker(), batch())
    monkeypatch.setattr(spec_utils, "SIMULATE_ACC_TOKEN_MODE", "real-draft-token")
    assert plain_step.is_largest_logit(worker(), batch())


def test_hidden_states_outlive_the_graphs_buffer_where_nothing_relays_them() -> None:
    buffer = torch.ones(REQUESTS, HIDDEN)
    result: Any = SimpleNamespace(
        logits_output=SimpleNamespace(hidden_states=buffer), next_draft_input=SimpleNamespace(bonus_tokens=torch.zeros(REQUESTS))
    )
    relayed, kept = plain_step.last_hidden(result, overlapped=True), plain_step.last_hidden(result, overlapped=False)
    assert relayed.data_ptr() == buffer.data_ptr()
    buffer.zero_()
    assert kept.eq(1).all()


def test_a_switch_makes_no_tensors_of_eagles_draft() -> None:
    from sglang.srt.speculative.base_spec_worker import EagleDraftWorkerBase

    from sglang_gemma4.speculative.adaptive import AdaptiveDraftWorker

    made: Any = object.__new__(AdaptiveDraftWorker)
    made.topk = 1  # for which EAGLE's own would go on and ask for the rest
    made._rebuild_topk1_chain_buffers()
    assert made._topk1_parents_prealloc is made._topk1_score_indices_prealloc is None
    with pytest.raises(AttributeError):
        EagleDraftWorkerBase._rebuild_topk1_chain_buffers(made)
