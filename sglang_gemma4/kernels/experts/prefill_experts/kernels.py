"""Both GEMMs of a prefill's experts: a program walks over the tiles of one GEMM over all experts' rows."""

import triton
import triton.language as tl

from sglang_gemma4.kernels.dependent_launch import await_inputs


@triton.jit
def _tile_at(place, blocks, COLUMN_TILES: tl.constexpr, GROUP: tl.constexpr):  # type: ignore[no-untyped-def]
    """The block of rows and the column tile at ``place`` in the order that ``PrefillTile.group`` gives."""
    first = place // (GROUP * COLUMN_TILES) * GROUP
    height = tl.minimum(blocks - first, GROUP)
    inside = place % (GROUP * COLUMN_TILES)
    return first + inside % height, inside // height


@triton.jit
def _gate_and_up_tile(  # type: ignore[no-untyped-def]
    x_ptr,
    w13,
    weights_ptr,
    row_ptr,
    h_ptr,
    expert,
    block,
    column,
    ROWS,
    TOPK: tl.constexpr,
    HIDDEN: tl.constexpr,
    INNER: tl.constexpr,
    SIZE: tl.constexpr,
    COMPUTED: tl.constexpr,  # rows of the block
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    PRECISION: tl.constexpr,
    TMA: tl.constexpr,
):
    places = block * SIZE + tl.arange(0, COMPUTED)
    rows = tl.load(row_ptr + places)
    real = rows < ROWS
    weights = tl.load(weights_ptr + rows, mask=real, other=0.0).to(tl.float32)
    depths = tl.arange(0, DEPTH)
    x_pointers = x_ptr + (rows // TOPK).to(tl.int64)[:, None] * HIDDEN + depths[None, :]
    if not TMA:
        sides = tl.arange(0, 2 * COLUMNS)  # gate's columns, then up's
        chosen = column * COLUMNS + sides % COLUMNS
        wanted = chosen < INNER
        chosen += sides // COLUMNS * INNER
        w_pointers = w13 + expert.to(tl.int64) * (2 * INNER * HIDDEN) + chosen.to(tl.int64)[None, :] * HIDDEN + depths[:, None]
    both = tl.zeros([COMPUTED, 2 * COLUMNS], tl.float32)
    for start in range(0, HIDDEN, DEPTH):
        left = depths < HIDDEN - start
        if HIDDEN % DEPTH == 0:
            taken = tl.load(x_pointers + start, mask=real[:, None], other=0.0)
        else:
            taken = tl.load(x_pointers + start, mask=real[:, None] & left[None, :], other=0.0)
        if TMA:
            w = w13.load([2 * expert, column * COLUMNS, start]).reshape(2 * COLUMNS, DEPTH).T
        elif HIDDEN % DEPTH == 0 and INNER % COLUMNS == 0:
            w = tl.load(w_pointers + start)
        else:
            w = tl.load(w_pointers + start, mask=left[:, None] & wanted[None, :], other=0.0)
        both = tl.dot(taken, w, both, input_precision=PRECISION)
    gate, up = tl.split(tl.permute(tl.reshape(both, (COMPUTED, 2, COLUMNS)), (0, 2, 1)))
    # 0.5 * (1 + tanh(z)) is sigmoid(2 z)
    act = gate * tl.sigmoid(1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)) * up * weights[:, None]
    columns = column * COLUMNS + tl.arange(0, COLUMNS)
    stored = h_ptr + places.to(tl.int64)[:, None] * INNER + columns[None, :]
    # Rows that are not real are zeros: the second product loads whole blocks.
    if INNER % COLUMNS == 0:
        tl.store(stored, act.to(h_ptr.dtype.element_ty))
    else:
        tl.store(stored, act.to(h_ptr.dtype.element_ty), mask=(columns < INNER)[None, :])


@triton.jit(do_not_specialize=["ROWS"])
def gate_and_up_kernel(  # type: ignore[no-untyped-def]
    x_ptr,  # [tokens, HIDDEN]
    w13,  # [experts, 2 * INNER, HIDDEN], gate first; under TMA a descriptor of [experts * 2, INNER, HIDDEN]
    weights_ptr,  # [rows] float32
    expert_ptr,  # [blocks]; -1: of no expert
    row_ptr,  # [blocks, SIZE]
    count_ptr,
    h_ptr,  # [blocks, SIZE, INNER]
    ROWS,
    TOPK: tl.constexpr,
    HIDDEN: tl.constexpr,
    INNER: tl.constexpr,
    SIZE: tl.constexpr,
    HALVES: tl.constexpr,
    AHEAD: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    GROUP: tl.constexpr,
    PRECISION: tl.constexpr,
    TMA: tl.constexpr,
    PDL: tl.constexpr,
):
    await_inputs(PDL)  # before weights are read too: they may be what the launch before writes out
    COLUMN_TILES: tl.constexpr = (INNER + COLUMNS - 1) // COLUMNS  # noqa: N806
    blocks = tl.load(count_ptr)
    for place in tl.range(tl.program_id(0), blocks * COLUMN_TILES, tl.num_programs(0), flatten=AHEAD):
        block, column = _tile_at(place, blocks, COLUMN_TILES, GROUP)
        expert = tl.load(expert_ptr + block)
        if AHEAD:  # one loop, so no branch: blocks of no expert compute what nobody reads
            _gate_and_up_tile(
                x_ptr, w13, weights_ptr, row_ptr, h_ptr, tl.maximum(expert, 0), block, column, ROWS,
                TOPK, HIDDEN, INNER, SIZE, SIZE, COLUMNS, DEPTH, PRECISION, TMA,
            )  # fmt: skip
        elif expert >= 0:
            few = False
            if HALVES:
                few = tl.load(row_ptr + block * SIZE + SIZE // 2) >= ROWS
            if few:
                _gate_and_up_tile(
                    x_ptr, w13, weights_ptr, row_ptr, h_ptr, expert, block, column, ROWS,
                    TOPK, HIDDEN, INNER, SIZE, SIZE // 2, COLUMNS, DEPTH, PRECISION, TMA,
                )  # fmt: skip
            else:
                _gate_and_up_tile(
                    x_ptr, w13, weights_ptr, row_ptr, h_ptr, expert, block, column, ROWS,
                    TOPK, HIDDEN, INNER, SIZE, SIZE, COLUMNS, DEPTH, PRECISION, TMA,
                )  # fmt: skip


@triton.jit
def _down_tile(  # type: ignore[no-untyped-def]
    h,
    w2,
    row_ptr,
    out_ptr,
    expert,
    block,
    column,
    ROWS,
    HIDDEN: tl.constexpr,
    INNER: tl.constexpr,
    SIZE: tl.constexpr,
    COMPUTED: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    PRECISION: tl.constexpr,
    TMA: tl.constexpr,
):
    places = block * SIZE + tl.arange(0, COMPUTED)
    rows = tl.load(row_ptr + places)
    real = rows < ROWS
    columns = column * COLUMNS + tl.arange(0, COLUMNS)
    inside = columns < HIDDEN
    depths = tl.arange(0, DEPTH)
    if not TMA:
        h_pointers = h + places.to(tl.int64)[:, None] * INNER + depths[None, :]
        w_pointers = w2 + expert.to(tl.int64) * (HIDDEN * INNER) + columns.to(tl.int64)[None, :] * INNER + depths[:, None]
    out = tl.zeros([COMPUTED, COLUMNS], tl.float32)
    for start in range(0, INNER, DEPTH):
        if TMA:
            taken = h.load([block * SIZE, start])
            w = w2.load([expert, column * COLUMNS, start]).reshape(COLUMNS, DEPTH).T
        else:
            left = depths < INNER - start
            taken = tl.load(h_pointers + start, mask=left[None, :], other=0.0)
            w = tl.load(w_pointers + start, mask=left[:, None] & inside[None, :], other=0.0)
        out = tl.dot(taken, w, out, input_precision=PRECISION)
    stored = out_ptr + rows.to(tl.int64)[:, None] * HIDDEN + columns[None, :]
    if HIDDEN % COLUMNS == 0:
        tl.store(stored, out.to(out_ptr.dtype.element_ty), mask=real[:, None])
    else:
        tl.store(stored, out.to(out_ptr.dtype.element_ty), mask=real[:, None] & inside[None, :])


@triton.jit(do_not_specialize=["ROWS"])
def down_rows_kernel(  # type: ignore[no-untyped-def]
    h,  # [blocks, SIZE, INNER]; under TMA a descriptor of [blocks * SIZE, INNER]
    h_half,  # the same, half a block at a time
    w2,  # [experts, HIDDEN, INNER]
    expert_ptr,
    row_ptr,
    count_ptr,
    out_ptr,  # [rows, HIDDEN]
    ROWS,
    HIDDEN: tl.constexpr,
    INNER: tl.constexpr,
    SIZE: tl.constexpr,
    HALVES: tl.constexpr,
    AHEAD: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    GROUP: tl.constexpr,
    PRECISION: tl.constexpr,
    TMA: tl.constexpr,
    PDL: tl.constexpr,
):
    await_inputs(PDL)  # before weights are read too: they may be what the launch before writes out
    COLUMN_TILES: tl.constexpr = (HIDDEN + COLUMNS - 1) // COLUMNS  # noqa: N806
    blocks = tl.load(count_ptr)
    for place in tl.range(tl.program_id(0), blocks * COLUMN_TILES, tl.num_programs(0), flatten=AHEAD):
        block, column = _tile_at(place, blocks, COLUMN_TILES, GROUP)
        expert = tl.load(expert_ptr + block)
        if AHEAD:
            _down_tile(
                h, w2, row_ptr, out_ptr, tl.maximum(expert, 0), block, column, ROWS,
                HIDDEN, INNER, SIZE, SIZE, COLUMNS, DEPTH, PRECISION, TMA,
            )  # fmt: skip
        elif expert >= 0:
            few = False
            if HALVES:
                few = tl.load(row_ptr + block * SIZE + SIZE // 2) >= ROWS
            if few:
                _down_tile(
                    h_half, w2, row_ptr, out_ptr, expert, block, column, ROWS,
                    HIDDEN, INNER, SIZE, SIZE // 2, COLUMNS, DEPTH, PRECISION, TMA,
                )  # fmt: skip
            else:
                _down_tile(
                    h, w2, row_ptr, out_ptr, expert, block, column, ROWS,
                    HIDDEN, INNER, SIZE, SIZE, COLUMNS, DEPTH, PRECISION, TMA,
                )  # fmt: skip
