"""Attention of a request's query tokens over a part of its keys, and the join of the parts.

An int8 cache is read as int32 words of four adjacent values. A GEMM is then the sum of four, one per byte of the
word, each with every fourth value of the queries. An output is interleaved from four results. So a word's values stay
in the register into which they are loaded. Byte by byte, the operands of the matrix instructions, whose adjacent
elements belong to two keys, take four loads from shared memory instead of one. On an H200 a full layer takes a third
less time by words than by bytes, and a quarter less than over bfloat16 (16 requests, four queries each;
``runs/2026-11-26-int8-words``).
"""

import triton
import triton.language as tl

from sglang_gemma4.kernels.dependent_launch import await_inputs


@triton.jit
def parts_of(length, total, requests, wanted, most, LEAST: tl.constexpr, MOST: tl.constexpr):  # type: ignore[no-untyped-def]
    """Parts a request of ``length`` cached keys is cut into, and keys in each; ``total`` are the keys of all ``requests``.

    ``wanted`` below 0: ``-wanted`` parts, and more of a request that is longer than the others, so that a part has about as many keys as
    one of a request of average length. Of equal requests none gets more.
    """
    each = tl.maximum(wanted, -wanted)
    target = tl.maximum(LEAST, tl.cdiv(total, requests * each))  # no less than ``each`` parts of equal requests have
    balanced = tl.where(wanted < 0, (length + target // 2) // target, 0)
    parts = tl.maximum(tl.maximum(each, balanced), length // MOST)
    parts = tl.maximum(1, tl.minimum(tl.minimum(most, length // LEAST), parts))
    return parts, tl.cdiv(length, parts)


def _of_place(place: int) -> tl.constexpr:
    """PTX for the int8 values at ``place`` of two words, as bfloat16: 128 plus the low seven bits, then less 128 or 256."""
    return tl.constexpr(
        "{ .reg .b32 t, low, off, one; mov.b32 one, 0x3f803f80; "
        f"prmt.b32 t, $1, $2, 0x0{place + 4}0{place}; lop3.b32 low, t, 0x007f007f, 0x43004300, 0xea; "
        "lop3.b32 off, t, 0x00800080, 0xc300c300, 0xea; fma.rn.bf16x2 $0, low, one, off; }"
    )


_FIRST, _SECOND, _THIRD, _FOURTH = (_of_place(place) for place in range(4))


@triton.jit
def _levels_at(words, dtype: tl.constexpr, PLACE: tl.constexpr):  # type: ignore[no-untyped-def]
    """The levels at ``PLACE`` of the words: bfloat16 by PTX, another dtype as Triton's interpreter can."""
    if dtype != tl.bfloat16:
        found = ((words << (24 - 8 * PLACE)) >> 24).to(dtype)
    elif PLACE == 0:
        found = tl.inline_asm_elementwise(_FIRST, "=r,r,r", [words], dtype=tl.bfloat16, is_pure=True, pack=2)
    elif PLACE == 1:
        found = tl.inline_asm_elementwise(_SECOND, "=r,r,r", [words], dtype=tl.bfloat16, is_pure=True, pack=2)
    elif PLACE == 2:
        found = tl.inline_asm_elementwise(_THIRD, "=r,r,r", [words], dtype=tl.bfloat16, is_pure=True, pack=2)
    else:
        found = tl.inline_asm_elementwise(_FOURTH, "=r,r,r", [words], dtype=tl.bfloat16, is_pure=True, pack=2)
    return found


@triton.jit
def _weigh(scores, seen, top, SOFT_CAP: tl.constexpr):  # type: ignore[no-untyped-def]
    """Weights of one block's keys beside every row's running maximum, what fades the sums so far, and the new maximum."""
    if SOFT_CAP > 0:
        scores = SOFT_CAP * (2 * tl.sigmoid(2 * scores / SOFT_CAP) - 1)  # tanh
    scores = tl.where(seen, scores, float("-inf"))
    new_top = tl.maximum(top, tl.max(scores, 1))
    safe = tl.where(new_top == float("-inf"), 0.0, new_top)  # a row that has seen nothing yet
    return tl.exp(scores - safe[:, None]), tl.exp(top - safe), new_top


@triton.jit
def _attend_words(  # type: ignore[no-untyped-def]
    first, second, third, fourth, k_pointers, v_pointers, seen, loaded, top, total, out, out_two, out_three, out_four, scale,
    k_scales, v_scales, SOFT_CAP: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    """:func:`_attend` over words of four int8 levels: every fourth value of the queries, from the first, second, third and fourth on."""
    words = tl.load(k_pointers, mask=loaded[None, :], other=0)  # [dim / 4, keys]
    scores = tl.dot(first, _levels_at(words, first.dtype, 0), input_precision=PRECISION)
    scores = tl.dot(second, _levels_at(words, first.dtype, 1), scores, input_precision=PRECISION)
    scores = tl.dot(third, _levels_at(words, first.dtype, 2), scores, input_precision=PRECISION)
    scores = tl.dot(fourth, _levels_at(words, first.dtype, 3), scores, input_precision=PRECISION) * scale
    scores *= tl.load(k_scales, mask=loaded, other=0.0)[None, :]
    weights, fade, top = _weigh(scores, seen, top, SOFT_CAP)
    shares = (weights * tl.load(v_scales, mask=loaded, other=0.0)[None, :]).to(first.dtype)
    words = tl.load(v_pointers, mask=loaded[:, None], other=0)  # [keys, value dim / 4]
    out = tl.dot(shares, _levels_at(words, first.dtype, 0), out * fade[:, None], input_precision=PRECISION)
    out_two = tl.dot(shares, _levels_at(words, first.dtype, 1), out_two * fade[:, None], input_precision=PRECISION)
    out_three = tl.dot(shares, _levels_at(words, first.dtype, 2), out_three * fade[:, None], input_precision=PRECISION)
    out_four = tl.dot(shares, _levels_at(words, first.dtype, 3), out_four * fade[:, None], input_precision=PRECISION)
    return top, total * fade + tl.sum(weights, 1), out, out_two, out_three, out_four


@triton.jit
def _attend(  # type: ignore[no-untyped-def]
    query, k_pointers, v_pointers, seen, loaded, top, total, out, scale, k_scales, v_scales, SOFT_CAP: tl.constexpr, PRECISION: tl.constexpr
):
    """One block of keys into the running maximum, sum and output of every row; pointers to a quantised cache's scales, or None."""
    keys = tl.load(k_pointers, mask=loaded[None, :], other=0.0)  # [dim, keys]
    scores = tl.dot(query, keys.to(query.dtype), input_precision=PRECISION) * scale
    if k_scales is not None:
        scores *= tl.load(k_scales, mask=loaded, other=0.0)[None, :]
    weights, fade, new_top = _weigh(scores, seen, top, SOFT_CAP)
    values = tl.load(v_pointers, mask=loaded[:, None], other=0.0)  # [keys, value dim]
    shares = weights
    if v_scales is not None:
        shares = weights * tl.load(v_scales, mask=loaded, other=0.0)[None, :]
    out = out * fade[:, None] + tl.dot(shares.to(query.dtype), values.to(query.dtype), input_precision=PRECISION)
    return new_top, total * fade + tl.sum(weights, 1), out


@triton.jit
def _attend_either(  # type: ignore[no-untyped-def]
    query, query_two, query_three, query_four, keys, values, scale_places, k_scale_ptr, v_scale_ptr, seen, loaded, top, total, out, out_two,
    out_three, out_four, scale, WORDS: tl.constexpr, SOFT_CAP: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    """:func:`_attend_words`, or :func:`_attend` without the second to fourth queries and outputs."""
    k_scales = None if k_scale_ptr is None else k_scale_ptr + scale_places
    v_scales = None if v_scale_ptr is None else v_scale_ptr + scale_places
    if WORDS:
        top, total, out, out_two, out_three, out_four = _attend_words(
            query, query_two, query_three, query_four, keys, values, seen, loaded, top, total, out, out_two, out_three, out_four,
            scale, k_scales, v_scales, SOFT_CAP, PRECISION,
        )  # fmt: skip
    else:
        top, total, out = _attend(query, keys, values, seen, loaded, top, total, out, scale, k_scales, v_scales, SOFT_CAP, PRECISION)
    return top, total, out, out_two, out_three, out_four


@triton.jit(do_not_specialize=["wanted", "most"])
def _few_query_attention_kernel(  # type: ignore[no-untyped-def]
    q_ptr,
    k_buffer_ptr,
    v_buffer_ptr,
    k_new_ptr,
    v_new_ptr,
    kv_indptr_ptr,
    kv_indices_ptr,
    tree_mask_ptr,
    tree_mask_indptr_ptr,
    key_offsets_ptr,
    part_out_ptr,  # [requests, KV heads, parts, rows, value dim] float32
    part_lse_ptr,  # [requests, KV heads, parts, rows] float32
    scale,
    wanted,  # parts of a request; negative: of one of average length
    most,  # parts there is room for
    q_token_stride,
    q_head_stride,
    k_slot_stride,
    k_head_stride,
    v_slot_stride,
    v_head_stride,
    k_new_token_stride,
    k_new_head_stride,
    v_new_token_stride,
    v_new_head_stride,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,  # query heads of a KV head
    QUERIES: tl.constexpr,
    NEW: tl.constexpr,  # the query tokens' own keys are in k_new
    TREE: tl.constexpr,
    HAS_OFFSETS: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    DIM: tl.constexpr,
    V_DIM: tl.constexpr,
    ROWS: tl.constexpr,  # QUERIES * GROUP, padded
    BLOCK: tl.constexpr,  # keys
    BLOCK_NEW: tl.constexpr,
    LEAST: tl.constexpr,  # keys in a part
    MOST: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
    new_slots_ptr=None,  # [requests * QUERIES]: where the query tokens' own keys are in the buffers; else they are in k_new
    k_scale_ptr=None,  # [slots, KV heads] float32, adjacent, of a cache that has scales
    v_scale_ptr=None,
    SPLIT: tl.constexpr = 1,  # shares of a KV head's query heads, each counted as a KV head in KV_HEADS and GROUP
):
    WORDS: tl.constexpr = k_buffer_ptr.dtype.element_ty == tl.int32  # noqa: N806
    await_inputs(PDL)
    # Heads first: programs side by side read adjacent keys, heads of the same slots.
    share = (tl.program_id(0) % KV_HEADS).to(tl.int64)
    kv_head = share // SPLIT
    request = (tl.program_id(0) // KV_HEADS).to(tl.int64)
    part = tl.program_id(1)
    start = tl.load(kv_indptr_ptr + request).to(tl.int64)
    length = (tl.load(kv_indptr_ptr + request + 1).to(tl.int64) - start).to(tl.int32)
    requests = tl.num_programs(0) // KV_HEADS
    parts, keys_per_part = parts_of(length, tl.load(kv_indptr_ptr + requests).to(tl.int32), requests, wanted, most, LEAST, MOST)
    if part < parts:
        rows = tl.arange(0, ROWS)
        token, head = rows // GROUP, share * GROUP + rows % GROUP
        real = rows < QUERIES * GROUP
        dims, v_dims = tl.arange(0, DIM), tl.arange(0, V_DIM)
        q_pointers = q_ptr + (request * QUERIES + token)[:, None] * q_token_stride + head[:, None] * q_head_stride
        if WORDS:  # four levels each, of which a buffer has a quarter as many
            dims, v_dims = tl.arange(0, DIM // 4), tl.arange(0, V_DIM // 4)
            q_pointers += 4 * dims[None, :]
            query_two = tl.load(q_pointers + 1, mask=real[:, None], other=0.0)
            query_three = tl.load(q_pointers + 2, mask=real[:, None], other=0.0)
            query_four = tl.load(q_pointers + 3, mask=real[:, None], other=0.0)
            out_two = tl.zeros([ROWS, V_DIM // 4], tl.float32)
            out_three = tl.zeros([ROWS, V_DIM // 4], tl.float32)
            out_four = tl.zeros([ROWS, V_DIM // 4], tl.float32)
        else:
            q_pointers += dims[None, :]
            query_two, query_three, query_four = 0, 0, 0
            out_two, out_three, out_four = 0, 0, 0
        query = tl.load(q_pointers, mask=real[:, None], other=0.0)
        top = tl.full([ROWS], float("-inf"), tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        out = tl.zeros([ROWS, V_DIM // 4 if WORDS else V_DIM], tl.float32)
        position = length + token if NEW else length - 1 + tl.zeros([ROWS], tl.int32)

        first = part * keys_per_part
        last = tl.minimum(first + keys_per_part, length)
        if WINDOW >= 0:  # what the first query token does not see, none does
            first = tl.maximum(first, (length if NEW else length - 1) - WINDOW)
        for block in range(first, last, BLOCK):
            columns = block + tl.arange(0, BLOCK)
            loaded = columns < last
            slots = tl.load(kv_indices_ptr + start + columns, mask=loaded, other=0).to(tl.int64)
            seen = loaded[None, :] & real[:, None]
            if WINDOW >= 0:
                seen &= position[:, None] <= columns[None, :] + WINDOW
            top, total, out, out_two, out_three, out_four = _attend_either(
                query, query_two, query_three, query_four,
                k_buffer_ptr + slots[None, :] * k_slot_stride + kv_head * k_head_stride + dims[:, None],
                v_buffer_ptr + slots[:, None] * v_slot_stride + kv_head * v_head_stride + v_dims[None, :],
                slots * (KV_HEADS // SPLIT) + kv_head, k_scale_ptr, v_scale_ptr,
                seen, loaded, top, total, out, out_two, out_three, out_four, scale, WORDS, SOFT_CAP, PRECISION,
            )  # fmt: skip
        if NEW and part == parts - 1:
            fresh = tl.arange(0, BLOCK_NEW)
            loaded = fresh < QUERIES
            seen = loaded[None, :] & real[:, None]
            if TREE:
                before = tl.load(key_offsets_ptr + request).to(tl.int64) if HAS_OFFSETS else 0
                width = before + length + QUERIES
                mask_start = tl.load(tree_mask_indptr_ptr + request).to(tl.int64) + before + length
                seen &= tl.load(tree_mask_ptr + mask_start + token[:, None] * width + fresh[None, :], mask=seen, other=0) != 0
            else:
                seen &= fresh[None, :] <= token[:, None]
            if WINDOW >= 0:
                seen &= token[:, None] <= fresh[None, :] + WINDOW
            tokens = request * QUERIES + fresh
            if new_slots_ptr is not None:
                tokens = tl.load(new_slots_ptr + tokens, mask=loaded, other=0).to(tl.int64)
            top, total, out, out_two, out_three, out_four = _attend_either(
                query, query_two, query_three, query_four,
                k_new_ptr + tokens[None, :] * k_new_token_stride + kv_head * k_new_head_stride + dims[:, None],
                v_new_ptr + tokens[:, None] * v_new_token_stride + kv_head * v_new_head_stride + v_dims[None, :],
                tokens * (KV_HEADS // SPLIT) + kv_head, k_scale_ptr, v_scale_ptr,
                seen, loaded, top, total, out, out_two, out_three, out_four, scale, WORDS, SOFT_CAP, PRECISION,
            )  # fmt: skip
        if WORDS:
            v_dims = tl.arange(0, V_DIM)
            out = tl.reshape(tl.join(tl.join(out, out_three), tl.join(out_two, out_four)), [ROWS, V_DIM])
        divisor = tl.where(total > 0, total, 1.0)
        out = out / divisor[:, None]
        place = (request * KV_HEADS + share) * most * (QUERIES * GROUP) + rows + part * (QUERIES * GROUP)
        tl.store(part_out_ptr + place[:, None] * V_DIM + v_dims[None, :], out, mask=real[:, None])
        tl.store(part_lse_ptr + place, tl.where(total > 0, top + tl.log(divisor), float("-inf")), mask=real)


@triton.jit(do_not_specialize=["wanted", "most"])
def _join_kernel(  # type: ignore[no-untyped-def]
    part_out_ptr,
    part_lse_ptr,
    kv_indptr_ptr,
    out_ptr,  # [tokens, heads, value dim]
    wanted,
    most,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    QUERIES: tl.constexpr,
    V_DIM: tl.constexpr,
    LEAST: tl.constexpr,  # keys in a part
    MOST: tl.constexpr,
    BLOCK_PARTS: tl.constexpr,
    PDL: tl.constexpr,
):
    await_inputs(PDL)
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    request = token // QUERIES
    row = (token % QUERIES) * GROUP + head % GROUP
    length = tl.load(kv_indptr_ptr + request + 1).to(tl.int32) - tl.load(kv_indptr_ptr + request).to(tl.int32)
    requests = tl.num_programs(0) // QUERIES
    parts, _ = parts_of(length, tl.load(kv_indptr_ptr + requests).to(tl.int32), requests, wanted, most, LEAST, MOST)
    only = tl.arange(0, 1)
    real = only == 0
    place = (request * KV_HEADS + head // GROUP) * most * (QUERIES * GROUP) + row + only
    dims = tl.arange(0, V_DIM)
    numbers = tl.arange(0, BLOCK_PARTS)
    there = real[:, None] & (numbers < parts)[None, :]
    lse = part_lse_ptr + place[:, None] + numbers[None, :] * (QUERIES * GROUP)
    top = tl.max(tl.load(lse, mask=there, other=float("-inf"), cache_modifier=".cg"), 1)
    safe = tl.where(top == float("-inf"), 0.0, top)
    total = tl.zeros_like(safe)
    out = total[:, None] + tl.zeros_like(dims)[None, :]
    for number in range(parts):
        at = place + number * (QUERIES * GROUP)
        weight = tl.exp(tl.load(part_lse_ptr + at, mask=real, other=float("-inf"), cache_modifier=".cg") - safe)
        total += weight
        found = tl.load(part_out_ptr + at[:, None] * V_DIM + dims[None, :], mask=real[:, None], other=0.0, cache_modifier=".cg")
        out += weight[:, None] * found
    out = out / tl.where(total > 0, total, 1.0)[:, None]
    stored = out_ptr + (token * (KV_HEADS * GROUP) + head) * V_DIM + only[:, None] + dims[None, :]
    tl.store(stored, out.to(out_ptr.dtype.element_ty))
