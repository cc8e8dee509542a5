"""Whose parts of keys are joined in the launch that finds them: those of our kernels in SGLang's triton backend, by its own counters."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sglang_gemma4.attention import decode, verify
from sglang_gemma4.patches import ORDER, attention_join, decode_attention, verify_attention


def stock(*_given: Any) -> None:
    """In the place of SGLang's kernels."""


def backend(ours: bool) -> Any:
    made = SimpleNamespace(topk=1, device="cpu", decode_attention_fwd=stock, verify_splitkv_fwd=stock)
    runner = SimpleNamespace(is_draft_worker=False, model_config=SimpleNamespace(hf_config=SimpleNamespace(architectures=["Gemma4"])))
    if ours:
        for take in (verify_attention.take_verify, decode_attention.take_decode):
            take(None, made, runner)
    attention_join.join_inside(None, made, runner)
    return made


def test_both_kernels_of_a_backend_get_counters(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[torch.Tensor] = []
    for module in (decode, verify):
        monkeypatch.setattr(module, "few_query_attention", lambda *_args, done, **_rest: given.append(done))
    states, indptr, one = torch.zeros(1, 2, 32), torch.tensor([0, 1]), torch.zeros(1, dtype=torch.int32)
    for made in (backend(ours=True), backend(ours=True)):
        made.decode_attention_fwd(states, states, states, states.clone(), indptr, one, None, None, None, 8, 1.0, 1.0, 1.0)
        assert made.verify_splitkv_fwd(
            states, states, states, states.clone(), states, states, None, indptr, one, None, True, None, 1, 1.0, 1.0, 1.0,
            logit_cap=0.0, sliding_window_size=-1, sinks=None, window_kv_offsets=None, xai_temperature_len=-1, max_bs=1,
        )  # fmt: skip
    assert all(done.dtype == torch.int32 and done.numel() and not done.any() for done in given)
    assert len({done.data_ptr() for done in given}) == 4, "what may run at once shares none"


def test_stock_s_kernels_stay() -> None:
    made = backend(ours=False)
    assert made.decode_attention_fwd is made.verify_splitkv_fwd is stock


def test_it_comes_after_the_kernels_are_in_place() -> None:
    assert ORDER.index("attention_join") > max(ORDER.index(name) for name in ("verify_attention", "decode_attention"))
    targets = {hook.target for patch in (verify_attention, decode_attention, attention_join) for hook in patch.PATCH.hooks}
    assert len(targets) == 1
