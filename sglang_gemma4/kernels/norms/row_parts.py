"""Rows as tuples of tiles, for element-wise kernels over a prefill's many rows, which memory bandwidth should bound.

A tile's columns are a power of two, a model's width seldom is. In one tile of 4096 for 2816 columns, 31 % of the
lanes hold nothing and still execute every instruction; 11 tiles of 256 fit. One or a few warps then hold a row, so
sums need hardly any barriers and each lane has many loads in flight. A program may take several rows and read the
weights once for all of them.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

MOST_OF_A_LANE = 96
"""Most elements of a row in a lane: three times as many values are live, and there are 255 registers."""
MOST_PARTS = 32
"""Most tiles of a row: the code is unrolled over them, and 64 took minutes to compile."""
MOST_HELD = 32
"""Elements in a lane up to which the weights stay in registers too; with more, each row reads them from the cache."""


class RowTiles(NamedTuple):
    """How a kernel for many rows is laid out."""

    rows: int
    """Rows of a program, one after the other."""
    block: int
    """Columns of a tile."""
    warps: int
    stages: int = 1
    """While a row is computed, the next ``stages - 1`` rows are being loaded into shared memory."""

    def lane(self, width: int) -> int:
        """Elements of a row that a lane holds."""
        return -(-width // self.block) * self.block // (32 * self.warps)

    def fits(self, width: int) -> bool:
        """Whether rows of ``width`` can be laid out like this."""
        return self.lane(width) <= MOST_OF_A_LANE and width <= MOST_PARTS * self.block

    def options(self, width: int) -> dict[str, Any]:
        """Constants and options of a kernel's launch."""
        parts = -(-width // self.block)
        return {
            "ROWS": self.rows,
            "STAGES": self.stages,
            "BLOCK": self.block,
            "PARTS": parts,
            "WHOLE": parts * self.block == width,
            "HELD": self.lane(width) <= MOST_HELD,
            "num_warps": self.warps,
        }


@triton.jit
def no_parts():  # type: ignore[no-untyped-def]
    """An empty tuple for :func:`with_part`."""
    return ()


@triton.jit
def with_part(parts, part):  # type: ignore[no-untyped-def]
    """``parts`` with ``part`` appended."""
    return parts + (part,)  # noqa: RUF005 - Triton has no unpacking


@triton.jit
def load_parts(start, width, BLOCK: tl.constexpr, PARTS: tl.constexpr, WHOLE: tl.constexpr):  # type: ignore[no-untyped-def]
    """``PARTS`` tiles ``[1, BLOCK]`` of the row at ``start``, as stored, 0 past ``width``. ``WHOLE``: nothing lies past it."""
    parts = no_parts()
    for part in tl.static_range(PARTS):
        columns = part * BLOCK + tl.arange(0, BLOCK)[None, :]
        if WHOLE or part < PARTS - 1:
            parts = with_part(parts, tl.load(start + columns))
        else:
            parts = with_part(parts, tl.load(start + columns, mask=columns < width, other=0.0))
    return parts


@triton.jit
def store_part(start, value, width, part: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr, WHOLE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Write one tile of the row at ``start``."""
    columns = part * BLOCK + tl.arange(0, BLOCK)[None, :]
    if WHOLE or part < PARTS - 1:
        tl.store(start + columns, value)
    else:
        tl.store(start + columns, value, mask=columns < width)


@triton.jit
def inverse_rms(parts, width, eps):  # type: ignore[no-untyped-def]
    """``1 / rms`` of a row's tiles, ``[1, 1]`` float32; lanes add up their own squares first, so that there is one sum over lanes."""
    value = parts[0].to(tl.float32)
    squares = value * value
    for part in tl.static_range(1, len(parts)):
        value = parts[part].to(tl.float32)
        squares += value * value
    return tl.rsqrt(tl.sum(squares, 1) / width + eps)[:, None]
