"""4-bit weights of many rows on a Hopper: what is left to others, the order of inputs, and what compiling leaves; answers need a card."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from triton.backends.nvidia import compiler

from sglang_gemma4.kernels import assembler
from sglang_gemma4.kernels import warpgroup_products as warpgroups
from sglang_gemma4.kernels.experts import chunk_experts as op
from sglang_gemma4.kernels.experts.expert_blocks import expert_blocks_reference
from sglang_gemma4.kernels.warpgroup_products import Tile
from sglang_gemma4.kernels.weights import FP8, Grouped, Weight, scaled
from tests.harness import hopper_operands
from tests.harness.gpu_compiler import compiling_for

HIDDEN, INNER, EXPERTS, TOPK = 2816, 704, 2, 2
HOPPER = 90


def four_bits(*shape: int, group: int = 32) -> Grouped:
    scale = torch.zeros(*shape[:-1], shape[-1] // group, dtype=torch.bfloat16)
    return Grouped(torch.zeros(*shape[:-1], shape[-1] // 2, dtype=torch.uint8), scale)


def layer(hidden: int = HIDDEN, inner: int = INNER, group: int = 32) -> tuple[Grouped, Grouped]:
    return four_bits(EXPERTS, 2 * inner, hidden, group=group), four_bits(EXPERTS, hidden, inner, group=group)


def given(tokens: int = 3, hidden: int = HIDDEN, dtype: torch.dtype = torch.bfloat16) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows, shares and ids."""
    return torch.zeros(tokens, hidden, dtype=dtype), torch.zeros(tokens, TOPK), torch.zeros(tokens, TOPK, dtype=torch.int32)


def test_inputs_lie_where_the_first_operand_has_them() -> None:
    """Lane ``lane`` of four has words ``2 * lane`` and the next one; a word's levels come out of the PTX as places 0, 4, 1, 5, 2, 6, 3, 7,
    two a register, and a lane's registers hold inputs ``2 * lane`` and the next one of eight, eight and sixteen further."""
    lies = warpgroups.by_span_reference(torch.arange(64.0)[None])[0].int().tolist()
    for lane in range(4):
        for word in range(2):
            for number, place in enumerate((0, 4, 1, 5, 2, 6, 3, 7)):
                register, half = divmod(number, 2)
                at = 32 * word + 16 * (register // 2) + 8 * (register % 2) + 2 * lane + half
                assert lies[at] == 8 * (2 * lane + word) + place
    assert sorted(lies) == list(range(64))


def test_what_is_left_to_others() -> None:
    x, shares, ids = given()
    assert op.reason_against(x, *layer(), shares, ids) is None
    assert op.reason_against(x, *layer(group=64), shares, ids) is None
    wide, narrow = given(hidden=2880), layer(inner=352)
    assert op.reason_against(wide[0], *layer(hidden=2880), *wide[1:]) == "experts of 2880 x 704; multiples of 128 and 64 are supported"
    assert op.reason_against(x, *narrow, shares, ids) == "experts of 2816 x 352; multiples of 128 and 64 are supported"
    fp8: Weight = scaled(torch.zeros(EXPERTS, 2 * INNER, HIDDEN, dtype=FP8), torch.ones(EXPERTS, 2 * INNER))
    other = op.reason_against(x, fp8, scaled(torch.zeros(EXPERTS, HIDDEN, INNER, dtype=FP8), torch.ones(EXPERTS, HIDDEN)), shares, ids)
    assert other == "Scaled and torch.bfloat16; 4-bit weights and bfloat16 are supported"
    with pytest.raises(ValueError, match=r"w13: 4-bit values in torch\.uint8 with scales of torch\.bfloat16 for x of torch\.float32"):
        op.chunk_experts(given(dtype=torch.float32)[0], *layer(), shares, ids)
    chosen = torch.tensor([[0, 1]] * 3).int()
    with pytest.raises(ValueError, match=r"rows lie in blocks \(2, 16\); the tile takes 64 a block"):
        op.chunk_experts(x, *layer(), shares, chosen, expert_blocks_reference(chosen, EXPERTS, 16), Tile(64))
    assert warpgroups.reason_against_card(torch.device("cpu")) == "tensors are on cpu"
    assert len(op.chunk_experts(x[:0], *layer(), shares[:0], ids[:0])) == 0


@pytest.mark.parametrize("tokens", [321, 640, 641, 1024, 2048])
def test_a_block_has_about_the_rows_of_an_expert(tokens: int) -> None:
    assert tokens / 16 / 2 <= op.tile_for(tokens).rows <= 2 * tokens / 16


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that everything is compiled here."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv(assembler.VARIABLE, raising=False)


def test_an_assembler_that_keeps_operands_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    against = warpgroups.reason_against_card.__wrapped__
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (9, 0))
    monkeypatch.delenv(assembler.VARIABLE, raising=False)
    card = torch.device("cuda")
    assert assembler.release() < assembler.KEEPS_OPERANDS, "else this shows nothing"
    assert against(card) is None
    newer = assembler.brought_along()
    monkeypatch.setattr(assembler, "brought_along", lambda: None)
    assert "ptxas 12.9 may overwrite operands that wgmma still reads, and Triton has none beside it;" in str(against(card))
    with assembler.keeping_operands():
        assert assembler.release() < assembler.KEEPS_OPERANDS
    monkeypatch.setenv(assembler.VARIABLE, newer.path)
    assert against(card) is None
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (10, 0))
    assert against(card) == "the GPU's compute capability is 10.0; 9.0 has the instruction"


def test_other_kernels_stay_with_triton_s_assembler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within, the version that is part of a kernel's key is the newer one's; afterwards everything is as before, also after an error."""
    monkeypatch.delenv(assembler.VARIABLE, raising=False)
    before = assembler.release(), compiler.get_ptxas_version(HOPPER)
    seen = []

    def fail(*_: object) -> None:
        seen.append((assembler.release() >= assembler.KEEPS_OPERANDS, "release 13.3" in compiler.get_ptxas_version(HOPPER)))
        raise RuntimeError("of the compiler")

    kernel = assembler.keeps_operands(SimpleNamespace(_do_compile=fail))
    with pytest.raises(RuntimeError, match="of the compiler"):
        kernel._do_compile()
    assert seen == [(True, True)]
    assert (assembler.release(), compiler.get_ptxas_version(HOPPER)) == before
    assert assembler.VARIABLE not in os.environ


LOOP = """
        /*0100*/                   HMUL2.BF16_V2 R8, R20, R30 ;
        /*0110*/                   WARPGROUP.DEPBAR.LE gsb0, {waits} ;
        /*0120*/                   LDG.E.{size} R{loaded}, desc[UR4][R40.64] ;
        /*0130*/                   HGMMA.64x64x16.F32.BF16 R48, R{operand}, gdesc[UR8], R48, gsb0 ;
        /*0140*/              @P0  BRA 0x100 ;
"""


@pytest.mark.parametrize(
    ("given", "at"),
    [
        ({"waits": "0x0", "operand": 24}, []),
        ({"waits": "0x0", "operand": 8}, [0x100]),  # before the wait, the last turn's instruction may still read
        ({"waits": "0x1", "operand": 24, "loaded": 26}, [0x120]),  # it waits for all but that one
        ({"waits": "0x1", "operand": 24, "loaded": 22, "size": "128"}, [0x120]),
        ({"waits": "0x1", "operand": 24, "loaded": 20, "size": "128"}, []),
    ],
)
def test_writes_to_an_operand_that_is_still_read_are_found(given: dict[str, object], at: list[int]) -> None:
    """As 104 were in a kernel of the first version, by 12.9, and none by 13.3."""
    found = hopper_operands.overwritten(hopper_operands.read(LOOP.format(**{"loaded": 60, "size": "64", **given})))
    assert [int(each.split()[0], 16) for each in found] == at


@pytest.mark.parametrize("tile", [op.tile_for(321), op.tile_for(1024)], ids=str)
@pytest.mark.usefixtures("own_cache")
def test_a_hopper_s_registers_suffice(tile: Tile, monkeypatch: pytest.MonkeyPatch) -> None:
    """The matrix instructions take their first operand from registers, none of which is overwritten, and no register goes to memory."""
    found = {}

    def see(name: str, kernel: object) -> None:
        found[name] = kernel

    x, shares, _ = given()
    ids = torch.tensor([[0, 1]] * 3).int()
    with compiling_for(HOPPER, see, monkeypatch):
        op.chunk_experts(x, *layer(), shares, ids, tile=tile)
    kernels = ("_gate_and_up_kernel", "_down_kernel")
    assert {"_by_span_kernel", *kernels} <= set(found)
    for name in kernels:
        kernel = found[name]
        assert kernel.metadata.shared <= 100 << 10, "two programs a multiprocessor"  # type: ignore[attr-defined]
        ptx = kernel.asm["ptx"]  # type: ignore[attr-defined]
        assert ptx.count("fence.proxy.async") == 1, "of the barriers alone: one in the loop would wait for the words on their way"
        assert ptx.count("wgmma.mma_async.sync.aligned") % 4 == 0, "four steps of sixteen inputs, of each product"
        assert f"m64n{tile.rows}k16" in ptx
        code = hopper_operands.sass(kernel.asm["cubin"])  # type: ignore[attr-defined]
        assert hopper_operands.overwritten(code) == []
        assert not [each for each in code if each.operation.startswith(("LDL", "STL"))], "registers spilled"
