"""Attention of a tile of a prompt's tokens: blocks of keys of the prefix, then the prompt's own."""

import triton
import triton.language as tl


@triton.jit
def _sweep(  # type: ignore[no-untyped-def]
    first,
    last,
    end,
    position,
    limit,
    query,
    k_ptr,
    v_ptr,
    indices_ptr,
    k_stride,
    v_stride,
    offset,
    top,
    total,
    out,
    scale,
    k_scales,  # of the row a head's key is in, or None; [rows, KV heads]
    v_scales,
    KV_HEADS: tl.constexpr,
    WINDOW: tl.constexpr,
    MASKED: tl.constexpr,
    PAGED: tl.constexpr,  # rows of k and v by index, not in order
    DIM: tl.constexpr,
    V_DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Keys ``first`` to ``last``, of which those before ``end`` exist, into the running maximum, sum and output of every row.

    ``position`` of a row and ``limit``, the last key it may see, count from the same zero as the keys. Exponents are of two;
    ``scale`` has the logarithm in it.
    """
    dims, v_dims = tl.arange(0, DIM), tl.arange(0, V_DIM)
    for block in range(first, last, BLOCK):
        columns = block + tl.arange(0, BLOCK)
        rows = tl.load(indices_ptr + columns, mask=columns < end, other=0).to(tl.int64) if PAGED else columns.to(tl.int64)
        if MASKED:
            keys = tl.load(k_ptr + rows[None, :] * k_stride + dims[:, None], mask=(columns < end)[None, :], other=0.0)
        else:
            keys = tl.load(k_ptr + rows[None, :] * k_stride + dims[:, None])
        scores = tl.dot(query, keys.to(query.dtype), input_precision=PRECISION) * scale  # [rows, keys]
        if k_scales is not None:
            scores *= tl.load(k_scales + rows * KV_HEADS, mask=columns < end, other=0.0)[None, :]
        if MASKED:
            seen = (columns < end)[None, :] & (columns[None, :] + offset <= limit[:, None])
            if WINDOW >= 0:
                seen &= position[:, None] <= columns[None, :] + offset + WINDOW
            scores = tl.where(seen, scores, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, 1))
        safe = tl.where(new_top == float("-inf"), 0.0, new_top)  # a row that has seen nothing yet
        weights = tl.exp2(scores - safe[:, None])
        fade = tl.exp2(top - safe)
        if MASKED:
            values = tl.load(v_ptr + rows[:, None] * v_stride + v_dims[None, :], mask=(columns < end)[:, None], other=0.0)
        else:
            values = tl.load(v_ptr + rows[:, None] * v_stride + v_dims[None, :])
        shares = weights
        if v_scales is not None:
            shares = weights * tl.load(v_scales + rows * KV_HEADS, mask=columns < end, other=0.0)[None, :]
        out = tl.dot(shares.to(query.dtype), values.to(query.dtype), out * fade[:, None], input_precision=PRECISION)
        total = total * fade + tl.sum(weights, 1)
        top = new_top
    return top, total, out


@triton.jit
def _prefill_attention_kernel(  # type: ignore[no-untyped-def]
    q_ptr,
    k_ptr,
    v_ptr,
    k_buffer_ptr,
    v_buffer_ptr,
    qo_indptr_ptr,
    kv_indptr_ptr,
    kv_indices_ptr,
    reach_ptr,  # [tokens], read where REACH
    tiles_ptr,  # [programs, 2] request and tile, read where LISTED
    out_ptr,  # [tokens, heads, value dim]
    scale,
    q_token_stride,
    q_head_stride,
    k_token_stride,
    k_head_stride,
    v_token_stride,
    v_head_stride,
    k_slot_stride,
    k_buffer_head_stride,
    v_slot_stride,
    v_buffer_head_stride,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,  # query heads of a KV head, a power of two
    WINDOW: tl.constexpr,
    REACH: tl.constexpr,  # tokens of an image see all of it
    LISTED: tl.constexpr,
    DIM: tl.constexpr,
    V_DIM: tl.constexpr,
    TOKENS: tl.constexpr,
    BLOCK: tl.constexpr,
    PRECISION: tl.constexpr,
    new_slots_ptr=None,  # [tokens]: where the new tokens' keys are in the buffers; else they are in k and v
    k_scale_ptr=None,  # [slots, KV heads] float32, adjacent, of a cache that has scales
    v_scale_ptr=None,
):
    kv_head = tl.program_id(1).to(tl.int64)
    request = tl.load(tiles_ptr + 2 * tl.program_id(0)).to(tl.int64) if LISTED else tl.program_id(2).to(tl.int64)
    begin = tl.load(qo_indptr_ptr + request).to(tl.int64)
    tokens = (tl.load(qo_indptr_ptr + request + 1).to(tl.int64) - begin).to(tl.int32)
    final = tl.cdiv(tokens, TOKENS) - 1
    tile = tl.load(tiles_ptr + 2 * tl.program_id(0) + 1) if LISTED else final - tl.program_id(0)
    if tile >= 0:
        start = tl.load(kv_indptr_ptr + request).to(tl.int64)
        prefix = (tl.load(kv_indptr_ptr + request + 1).to(tl.int64) - start).to(tl.int32)
        rows = tl.arange(0, TOKENS * GROUP)
        token, head = tile * TOKENS + rows // GROUP, kv_head * GROUP + rows % GROUP
        real = token < tokens
        dims, v_dims = tl.arange(0, DIM), tl.arange(0, V_DIM)
        query = tl.load(
            q_ptr + (begin + token)[:, None] * q_token_stride + head[:, None] * q_head_stride + dims[None, :], mask=real[:, None], other=0.0
        )
        top = tl.full([TOKENS * GROUP], float("-inf"), tl.float32)
        total = tl.zeros([TOKENS * GROUP], tl.float32)
        out = tl.zeros([TOKENS * GROUP, V_DIM], tl.float32)
        lowest, highest = tile * TOKENS, tl.minimum(tile * TOKENS + TOKENS, tokens) - 1  # positions among the new tokens

        k_prefix, v_prefix = k_buffer_ptr + kv_head * k_buffer_head_stride, v_buffer_ptr + kv_head * v_buffer_head_stride
        k_new, v_new = k_ptr + begin * k_token_stride + kv_head * k_head_stride, v_ptr + begin * v_token_stride + kv_head * v_head_stride
        OWN: tl.constexpr = new_slots_ptr is not None  # noqa: N806 - a constant
        own_indices, k_own_stride, v_own_stride = kv_indices_ptr, k_token_stride, v_token_stride
        if OWN:
            k_new, v_new, k_own_stride, v_own_stride = k_prefix, v_prefix, k_slot_stride, v_slot_stride
            own_indices = new_slots_ptr + begin
        k_scales = None if k_scale_ptr is None else k_scale_ptr + kv_head
        v_scales = None if v_scale_ptr is None else v_scale_ptr + kv_head
        if WINDOW >= 0:
            edge = tl.maximum(0, prefix + lowest - WINDOW) // BLOCK * BLOCK  # the first key that any row sees is in this block
            inside = tl.cdiv(tl.maximum(0, prefix + highest - WINDOW), BLOCK) * BLOCK  # from here on every row sees every key
            inside = tl.minimum(tl.maximum(inside, edge), prefix // BLOCK * BLOCK)
            edge = tl.minimum(edge, inside)
        else:
            edge, inside = 0, 0
        whole = tl.maximum(prefix // BLOCK * BLOCK, inside)
        position = prefix + token
        if REACH:
            last = tl.load(reach_ptr + begin + token, mask=real, other=0).to(tl.int32)
            highest_key = tl.minimum(tl.maximum(tl.max(last), highest), tokens - 1)
            limit = prefix + tl.where(real, last, token)
        else:
            highest_key, limit = highest, position
        if WINDOW >= 0:
            top, total, out = _sweep(
                edge, inside, prefix, position, limit, query, k_prefix, v_prefix, kv_indices_ptr + start, k_slot_stride, v_slot_stride, 0,
                top, total, out, scale, k_scales, v_scales, KV_HEADS, WINDOW, True, True, DIM, V_DIM, BLOCK, PRECISION,
            )  # fmt: skip
        top, total, out = _sweep(
            inside, whole, prefix, position, limit, query, k_prefix, v_prefix, kv_indices_ptr + start, k_slot_stride, v_slot_stride, 0,
            top, total, out, scale, k_scales, v_scales, KV_HEADS, WINDOW, False, True, DIM, V_DIM, BLOCK, PRECISION,
        )  # fmt: skip
        top, total, out = _sweep(
            whole, prefix, prefix, position, limit, query, k_prefix, v_prefix, kv_indices_ptr + start, k_slot_stride, v_slot_stride, 0,
            top, total, out, scale, k_scales, v_scales, KV_HEADS, WINDOW, True, True, DIM, V_DIM, BLOCK, PRECISION,
        )  # fmt: skip

        if WINDOW >= 0:
            edge = tl.maximum(0, lowest - WINDOW) // BLOCK * BLOCK
            inside = tl.cdiv(tl.maximum(0, highest - WINDOW), BLOCK) * BLOCK
        else:
            edge, inside = 0, 0
        diagonal = lowest // BLOCK * BLOCK  # the first block that some row does not see whole
        inside = tl.minimum(tl.maximum(inside, edge), diagonal)
        edge = tl.minimum(edge, inside)
        if WINDOW >= 0:
            top, total, out = _sweep(
                edge, inside, tokens, position, limit, query, k_new, v_new, own_indices, k_own_stride, v_own_stride, prefix,
                top, total, out, scale, k_scales, v_scales, KV_HEADS, WINDOW, True, OWN, DIM, V_DIM, BLOCK, PRECISION,
            )  # fmt: skip
        top, total, out = _sweep(
            inside, diagonal, tokens, position, limit, query, k_new, v_new, own_indices, k_own_stride, v_own_stride, prefix,
            top, total, out, scale, k_scales, v_scales, KV_HEADS, WINDOW, False, OWN, DIM, V_DIM, BLOCK, PRECISION,
        )  # fmt: skip
        top, total, out = _sweep(
            diagonal, highest_key + 1, tokens, position, limit, query, k_new, v_new, own_indices, k_own_stride, v_own_stride, prefix,
            top, total, out, scale, k_scales, v_scales, KV_HEADS, WINDOW, True, OWN, DIM, V_DIM, BLOCK, PRECISION,
        )  # fmt: skip
        stored = out_ptr + ((begin + token) * (KV_HEADS * GROUP) + head)[:, None] * V_DIM + v_dims[None, :]
        tl.store(stored, (out / total[:, None]).to(out_ptr.dtype.element_ty), mask=real[:, None])
