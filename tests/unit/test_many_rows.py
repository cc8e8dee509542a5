"""Which of two kernels a layer's norms, tails and rotations launch, and how: steps of decode launch as they always did."""

from typing import Any

import pytest
import torch

from sglang_gemma4.kernels.norms import layer_tail, qkv_norm_rope, triple_rmsnorm
from sglang_gemma4.kernels.norms.qkv_norm_rope import TokenTiles
from sglang_gemma4.kernels.norms.row_parts import RowTiles

EPS = 1e-6
Launch = tuple[str, tuple[int, ...], dict[str, Any]]
KERNELS = {
    triple_rmsnorm: ("_triple_rmsnorm_kernel", "triple_rmsnorm_rows_kernel"),
    layer_tail: ("_tail_kernel", "tail_rows_kernel"),
    qkv_norm_rope: ("_qkv_norm_rope_kernel", "qkv_norm_rope_tokens_kernel"),
}


class Recorder:
    """A kernel that notes its grid and options; nothing runs."""

    def __init__(self, name: str, launches: list[Launch]) -> None:
        self.name, self.launches = name, launches

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *given, **options: self.launches.append((self.name, grid, options))


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[Launch]:
    """Of the three modules, in order."""
    found: list[Launch] = []
    for module, names in KERNELS.items():
        for name in names:
            monkeypatch.setattr(module, name, Recorder(name, found))
    return found


def launch_all(rows: int, width: int, heads: int = 16) -> None:
    x, weight = torch.zeros(rows, width), torch.ones(width)
    triple_rmsnorm.triple_rmsnorm(x, x.clone(), weight, weight, weight, weight)
    layer_tail.dual_tail(x, x, x, (weight, weight, weight), torch.ones(1), (EPS, EPS, EPS), weight)
    qkv = torch.zeros(rows, (heads + 4) * 32)
    qkv_norm_rope.qkv_norm_rope(qkv, torch.zeros(rows, dtype=torch.int64), torch.zeros(4, 32), torch.ones(32), torch.ones(32), heads, 2)


@pytest.mark.parametrize(("rows", "heads_of_program"), [(1, 1), (80, 1), (204, 1), (205, 4), (1023, 4)])
def test_fewer_rows_than_a_prefill_has_keep_the_other_kernel(rows: int, heads_of_program: int, launches: list[Launch]) -> None:
    launch_all(rows, 100)
    norms, tail, rope = launches
    assert norms == ("_triple_rmsnorm_kernel", (rows,), {"TRIPLE": True, "BLOCK": 128, "num_warps": 1, "PDL": False})
    steps = {"DUAL": True, "HAS_SCALAR": True, "HAS_NEXT": True, "ROUNDED": False}
    assert tail == ("_tail_kernel", (rows,), {**steps, "BLOCK": 128, "num_warps": 1, "PDL": False})
    layer = {"HEADS": 16, "KV_HEADS": 2, "HALF": 16, "WRITES": False}
    programs = -(-rows * 20 // heads_of_program)
    assert rope == ("_qkv_norm_rope_kernel", (programs,), {**layer, "ROWS": heads_of_program, "num_warps": 1, "PDL": False})


def from_64_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (triple_rmsnorm, layer_tail):
        monkeypatch.setattr(module, "MANY_ROWS", 64)
        monkeypatch.setattr(module, "TILES", RowTiles(rows=3, block=256, warps=1, stages=2))
    monkeypatch.setattr(qkv_norm_rope, "MANY_TOKENS", 64)
    monkeypatch.setattr(qkv_norm_rope, "tiles_for", lambda dim: TokenTiles(tokens=2, warps=1))


def test_those_for_many_rows_are_taken_from_their_rows_on(launches: list[Launch], monkeypatch: pytest.MonkeyPatch) -> None:
    from_64_rows(monkeypatch)
    launch_all(63, 2816)
    assert [name for name, _, _ in launches] == [names[0] for names in KERNELS.values()]
    launches.clear()
    launch_all(64, 2816)
    assert [(name, grid) for name, grid, _ in launches] == [
        ("triple_rmsnorm_rows_kernel", (22,)),
        ("tail_rows_kernel", (22,)),
        ("qkv_norm_rope_tokens_kernel", (32,)),
    ]
    layout = {"ROWS": 3, "STAGES": 2, "BLOCK": 256, "PARTS": 11, "WHOLE": True, "HELD": False, "num_warps": 1}
    for _, _, options in launches[:2]:
        assert layout.items() <= options.items()
    assert {"TOKENS": 2, "num_warps": 1}.items() <= launches[2][2].items()


@pytest.mark.parametrize(("width", "heads"), [(5376, 16), (2816, 24), (2816, 512)])
def test_what_does_not_fit_keeps_the_other_kernel(width: int, heads: int, launches: list[Launch], monkeypatch: pytest.MonkeyPatch) -> None:
    from_64_rows(monkeypatch)
    launch_all(64, width, heads)
    many = [name in ("triple_rmsnorm_rows_kernel", "tail_rows_kernel", "qkv_norm_rope_tokens_kernel") for name, _, _ in launches]
    assert many == [width == 2816, width == 2816, heads == 16]


def test_weights_are_held_where_registers_are_left() -> None:
    assert RowTiles(rows=4, block=1024, warps=4).options(2816)["HELD"]
    assert not RowTiles(rows=4, block=512, warps=2).options(2816)["HELD"]
    assert not RowTiles(rows=1, block=32, warps=8).fits(2816), "88 tiles would be minutes of compiling"
