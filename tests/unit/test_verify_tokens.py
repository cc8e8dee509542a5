"""Batches whose verify step needs only the largest logit of each row."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sglang_gemma4.speculative import verify_tokens
from sglang_gemma4.speculative.verify_penalties import COUNTED


def info(**change: Any) -> Any:
    asked = {"is_all_greedy": True, "acc_additive_penalties": None, "acc_scaling_penalties": None, "logit_bias": None}
    return SimpleNamespace(**{**asked, "has_watermark_candidates": False, **change})


def batch(**change: Any) -> Any:
    return SimpleNamespace(**{"has_grammar": False, "return_logprob": False, "sampling_info": info(), **change})


def test_a_greedy_batch_needs_tokens_only() -> None:
    assert verify_tokens.suffice(batch())


@pytest.mark.parametrize(
    "change",
    [
        {"sampling_info": info(is_all_greedy=False)},
        {"sampling_info": info(acc_additive_penalties=torch.zeros(2))},
        {"sampling_info": info(acc_scaling_penalties=torch.zeros(2))},
        {"sampling_info": info(logit_bias=torch.zeros(2))},
        {"sampling_info": info(has_watermark_candidates=True)},
        {"sampling_info": info(**{COUNTED: object()})},
        {"has_grammar": True},
        {"return_logprob": True},
    ],
)
def test_what_else_is_asked_for_needs_logits(change: dict[str, Any]) -> None:
    assert not verify_tokens.suffice(batch(**change))
