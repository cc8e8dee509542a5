"""A norm computed ahead is handed out once, for the very tensor it was computed of."""

import pytest
import torch
from sglang.srt.layers.layernorm import Gemma4RMSNorm, RMSNorm

from sglang_gemma4.models.layers.decoder_layer import ReadyNorm, ready, reason_against_norm, reason_against_tensor

MARK = torch.full((2, 8), 7.0)


@pytest.mark.parametrize("kind", [RMSNorm, Gemma4RMSNorm])
def test_handed_out_for_the_same_tensor_once(kind: type) -> None:
    torch.manual_seed(0)
    norm, x = kind(8), torch.randn(2, 8)
    expected = norm(x)
    slot = ready(norm)
    assert torch.equal(norm(x), expected), "nothing was offered"
    slot.offer(x, MARK)
    assert norm(x) is MARK
    assert torch.equal(norm(x), expected), "handed out once"
    slot.offer(x, MARK)
    other = x.clone()
    assert torch.equal(norm(other), expected), "an equal tensor is another tensor"
    assert torch.equal(norm(x), expected), "and what was not taken is forgotten"
    assert slot.taken == 1


def test_a_norm_with_a_residual_is_computed() -> None:
    norm, x, residual = RMSNorm(8), torch.randn(2, 8), torch.randn(2, 8)
    expected = norm(x.clone(), residual.clone())
    ready(norm).offer(x, MARK)
    found = norm(x, residual)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_one_slot_a_norm_and_no_new_parameters() -> None:
    norm = RMSNorm(8)
    before = list(norm.state_dict())
    assert ready(norm) is ready(norm)
    assert isinstance(norm.forward, ReadyNorm)
    assert list(norm.state_dict()) == before


def test_norms_of_another_kind_are_named() -> None:
    assert reason_against_norm(RMSNorm(8), Gemma4RMSNorm(8), Gemma4RMSNorm(8, with_scale=False)) is None
    assert reason_against_norm(RMSNorm(8), Gemma4RMSNorm(8, scale_shift=1.0))
    assert reason_against_norm(RMSNorm(8, cast_x_before_out_mul=True))
    assert reason_against_norm(RMSNorm(8, var_hidden_size=4))
    assert reason_against_norm(torch.nn.LayerNorm(8))


def test_hidden_states_of_another_kind_are_named() -> None:
    assert reason_against_tensor(torch.zeros(2, 8)) == "Triton does not run on cpu"
    assert "(8,)" in str(reason_against_tensor(torch.zeros(8)))
    assert "tuple" in str(reason_against_tensor((torch.zeros(2, 8), torch.ones(2))))
