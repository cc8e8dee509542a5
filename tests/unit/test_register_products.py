"""Which products of quantised weights go through registers, and how their programs work; the kernels' answers are tested on a card."""

from collections.abc import Callable

import pytest
import torch

from sglang_gemma4.kernels import register_products as registers
from sglang_gemma4.kernels.dense.few_row_linear import counters, few_row_linear
from sglang_gemma4.kernels.dense.register_linear import warps_for
from sglang_gemma4.kernels.experts import register_experts
from sglang_gemma4.kernels.experts.expert_blocks import expert_blocks_reference
from sglang_gemma4.kernels.register_products import Warps
from sglang_gemma4.kernels.weights import FP8, Grouped, Scaled, Weight, scaled

OUTPUTS, WIDTH = 64, 128


def four_bits(*shape: int) -> Grouped:
    scale = torch.zeros(*shape[:-1], shape[-1] // 32, dtype=torch.bfloat16)
    return Grouped(torch.zeros(*shape[:-1], shape[-1] // 2, dtype=torch.uint8), scale)


def fp8(*shape: int) -> Scaled:
    return scaled(torch.zeros(shape, dtype=FP8), torch.ones(shape[:-1]))


def rows(count: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.zeros(count, WIDTH, dtype=dtype)


@pytest.fixture
def on_a_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """As far as the choice is concerned."""
    monkeypatch.setattr(registers, "_wanted", True)
    monkeypatch.setattr(registers, "reason_against", lambda _: None)


@pytest.mark.usefixtures("on_a_card")
def test_what_is_taken() -> None:
    blocks = Scaled(torch.zeros(OUTPUTS, WIDTH, dtype=FP8), torch.ones(1, 1), block=128)
    beside = Scaled(torch.zeros(OUTPUTS, 2 * WIDTH, dtype=FP8)[:, :WIDTH], torch.ones(OUTPUTS))
    for weight in (four_bits(OUTPUTS, WIDTH), fp8(OUTPUTS, WIDTH)):
        assert [registers.takes(rows(count), weight, count) for count in (1, 32, 33, 0)] == [True, True, False, False]
        assert not registers.takes(rows(4, torch.float16), weight, 4)
    for other in (blocks, beside, fp8(OUTPUTS, 8), torch.zeros(OUTPUTS, WIDTH, dtype=torch.bfloat16)):
        assert not registers.takes(rows(4), other, 4)


def test_nothing_is_taken_unasked_or_without_a_card(monkeypatch: pytest.MonkeyPatch) -> None:
    assert registers.reason_against(torch.device("cpu")) == "tensors are on cpu"
    assert not registers.takes(rows(4), four_bits(OUTPUTS, WIDTH), 4)
    monkeypatch.setattr(registers, "_wanted", True)
    assert not registers.takes(rows(4), four_bits(OUTPUTS, WIDTH), 4)


@pytest.mark.usefixtures("on_a_card")
@pytest.mark.parametrize(("make", "most"), [(four_bits, 64), (fp8, 16)])
def test_experts_are_taken_up_to_so_many_tokens(make: Callable[..., Weight], most: int) -> None:
    w13, w2 = make(4, 2 * OUTPUTS, WIDTH), make(4, WIDTH, OUTPUTS)
    assert register_experts.takes(rows(most), w13, w2)
    assert not register_experts.takes(rows(most + 1), w13, w2)
    assert not register_experts.takes(rows(1), w13, torch.zeros(4, WIDTH, OUTPUTS, dtype=torch.bfloat16))


def test_what_is_not_taken_is_refused() -> None:
    done, warps = counters(OUTPUTS, torch.device("cpu")), Warps(16, 4)
    with pytest.raises(ValueError, match="33 rows of Grouped by warps; up to 32 rows of fp8 and 4-bit weights"):
        few_row_linear(rows(33), four_bits(OUTPUTS, WIDTH), done, warps=warps)
    with pytest.raises(ValueError, match="4 rows of Tensor by warps"):
        few_row_linear(rows(4), torch.zeros(OUTPUTS, WIDTH, dtype=torch.bfloat16), done, warps=warps)
    ids, shares = torch.zeros(4, 2, dtype=torch.int32), torch.zeros(4, 2)
    plain = torch.zeros(4, 2 * OUTPUTS, WIDTH, dtype=torch.bfloat16), torch.zeros(4, WIDTH, OUTPUTS, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match=r"weights of torch\.bfloat16; fp8 and 4 bits are supported, give tiles"):
        register_experts.both(rows(4), *plain, shares, ids, expert_blocks_reference(ids, 4, 8), 8, (warps, warps))
    both = four_bits(4, 2 * OUTPUTS, WIDTH), four_bits(4, WIDTH, OUTPUTS)
    with pytest.raises(ValueError, match="blocks of 4 rows, of which 4 are computed; 8, 16 or 32 are supported"):
        register_experts.both(rows(4), *both, shares, ids, expert_blocks_reference(ids, 4, 4), 4, (warps, warps))


@pytest.mark.parametrize("per", [4, 8])
@pytest.mark.parametrize("count", [1, 8, 9, 32])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("sms", [16, 108, 132])
def test_every_shape_has_a_program(per: int, count: int, gated: bool, sms: int) -> None:
    for outputs, width in ((8192, 2816), (2816, 8192), (2112, 2816), (21504, 5376), (5376, 21504), (256, 1536), (1536, 256), (48, 64)):
        found = warps_for(outputs, width, count, per, sms, gated)
        assert found.outputs in (16, 32)
        assert (found.along, found.across) in ((4, 1), (8, 1))
        assert found.count <= 8
        assert found.ahead in (3, 6)
