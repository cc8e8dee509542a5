"""The KV cache per token and head: what the launches write and read under Triton's interpreter, against the reference in torch."""

import math
from typing import Any

import pytest
import torch

from sglang_gemma4.kernels.attention import few_query_attention as few
from sglang_gemma4.kernels.attention import prefill_attention as prompts
from sglang_gemma4.kernels.kv_cache.formats import FORMATS, cached_rows, quantise_reference
from sglang_gemma4.kernels.kv_cache.store import store, store_reference
from sglang_gemma4.kernels.norms.qkv_norm_rope import TokenTiles, qkv_norm_rope

TOLERANCE = 1e-5
DTYPES = [each.dtype for each in FORMATS.values()]


@pytest.fixture(autouse=True)
def rounded_as_on_a_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's interpreter loses the carry where a mantissa rounds up to the next power of two (31.6 becomes 16); cards do not."""
    from triton import language as tl
    from triton.runtime import interpreter

    theirs = interpreter._convert_float

    def converted(data: Any, of: Any, to: Any, rounding: Any) -> Any:
        if to != tl.float8e4nv or of != tl.float32:
            return theirs(data, of, to, rounding)
        return torch.from_numpy(data.copy()).to(torch.float8_e4m3fn).view(torch.uint8).numpy()

    monkeypatch.setattr(interpreter, "_convert_float", converted)


every_format = pytest.mark.parametrize("dtype", DTYPES, ids=list(FORMATS))


def rows(*shape: int, seed: int = 0) -> torch.Tensor:
    """Keys or values with an outlier channel, a row of zeros, one of next to nothing, NaN and infinities."""
    torch.manual_seed(seed)
    made = torch.randn(*shape)
    made[..., 3] *= 40
    made[0, 0] = 0
    made[1, 0] = 1e-38
    made[2, 0, 1], made[2, 0, 2], made[2, 0, 5] = math.nan, math.inf, -math.inf
    return made


def cache(slots: int, kv_heads: int, dim: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """Poisoned keys and values, whose heads and slots lie differently far apart, and scales."""
    memory = [torch.full((slots, kv_heads + more, dim), 7, dtype=torch.int8).view(dtype) for more in (1, 0)]
    return memory[0][:, 1:], memory[1], *(torch.full((slots, kv_heads), 99.0) for _ in range(2))


def same(found: tuple[torch.Tensor, ...], expected: tuple[torch.Tensor, ...]) -> None:
    for one, other in zip(found, expected, strict=True):
        if one.dtype.itemsize == 1:
            one, other = one.view(torch.int8), other.view(torch.int8)
        assert torch.equal(one, other)


@every_format
@pytest.mark.parametrize("kv_heads", [1, 3])
def test_store(dtype: torch.dtype, kv_heads: int) -> None:
    k, v = rows(9, kv_heads, 32), rows(9, kv_heads, 64, seed=1)
    slots = torch.tensor([5, 11, 2, 0, 0, -1, 3, 12, 10])  # padding thrice, one past the end
    found, expected = ([cache(12, kv_heads, d, dtype) for d in (32, 64)] for _ in range(2))
    for made, write in ((found, store), (expected, store_reference)):
        write(k, v, made[0][0], made[1][1], made[0][2], made[1][3], slots)
    same((*found[0], *found[1]), (*expected[0], *expected[1]))
    assert found[0][2].isfinite().all()
    assert (found[0][2][0] == 99).all(), "slot 0 is not written"
    assert not cached_rows(found[0][0], torch.tensor([5]), found[0][2])[0, 0].any(), "a row of zeros stays one"
    assert cached_rows(found[0][0], slots[[0, 1, 2, 6, 8]], found[0][2]).isfinite().all()


@every_format
@pytest.mark.parametrize("tiles", [None, TokenTiles(1, 1), TokenTiles(2, 1)], ids=str)
def test_the_launch_of_norms_and_rotation_stores_as_store_does(dtype: torch.dtype, tiles: TokenTiles | None) -> None:
    torch.manual_seed(0)
    heads, kv_heads, dim, tokens = 4, 2, 32, 7
    qkv = torch.randn(tokens, (heads + 2 * kv_heads) * dim)
    angles = torch.rand(50, dim // 2) * 7
    given = (qkv, torch.arange(tokens), torch.cat([angles.cos(), angles.sin()], -1), torch.randn(dim), torch.randn(dim), heads, kv_heads)
    slots = torch.tensor([4, 0, 9, 12, 1, -1, 2])
    found, expected = cache(12, kv_heads, dim, dtype), cache(12, kv_heads, dim, dtype)
    q, k, v = qkv_norm_rope(*given, 1e-6, found[0], found[1], slots, tiles, found[2], found[3])
    same((q, k, v), qkv_norm_rope(*given, tiles=tiles))
    store_reference(k, v, expected[0], expected[1], expected[2], expected[3], slots)
    same(found, expected)


def filled(slots: int, kv_heads: int, dim: int, dtype: torch.dtype | None) -> dict[str, Any]:
    """Keys and values of every slot in a format; None: in float32, without scales."""
    k, v = torch.randn(slots, kv_heads, dim), torch.randn(slots, kv_heads, dim)
    k[..., 3] *= 10
    if dtype is None:
        return {"k_buffer": k, "v_buffer": v}
    (k_levels, k_scales), (v_levels, v_scales) = quantise_reference(k, dtype), quantise_reference(v, dtype)
    return {"k_buffer": k_levels, "v_buffer": v_levels, "k_scales": k_scales, "v_scales": v_scales}


def few_case(dtype: torch.dtype | None, queries: int, lengths: list[int], dim: int = 32) -> dict[str, Any]:
    torch.manual_seed(3)
    total, requests = sum(lengths), len(lengths)
    slots = torch.randperm(total + requests * queries + 5)
    return {
        "q": torch.randn(requests * queries, 4, dim),
        **filled(slots.numel(), 2, dim, dtype),
        "kv_indptr": torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32),
        "kv_indices": slots[:total],
        "scale": dim**-0.5,
        "queries": queries,
        "new_slots": slots[total : total + requests * queries] if queries > 1 else None,
    }


def few_agree(given: dict[str, Any], **launch: Any) -> None:
    expected = few.few_query_attention_reference(**given)
    found = few.few_query_attention(**given, out=torch.full_like(expected, 1e4), **launch)
    torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.parametrize("dtype", [None, *DTYPES], ids=["float32", *FORMATS])
@pytest.mark.parametrize(("window", "soft_cap"), [(-1, 0.0), (40, 0.0), (-1, 5.0)])
@pytest.mark.parametrize("queries", [1, 4])
def test_few_query_attention(dtype: torch.dtype | None, window: int, soft_cap: float, queries: int) -> None:
    given = few_case(dtype, queries, [150, 1, 66])
    few_agree({**given, "window": window, "soft_cap": soft_cap}, parts=4)


@every_format
def test_query_heads_of_a_kv_head_divided_among_programs(dtype: torch.dtype) -> None:
    few_agree(few_case(dtype, 4, [150, 1, 66]), parts=2, split=2)


@pytest.mark.parametrize(("window", "soft_cap"), [(-1, 5.0), (40, 0.0)])
@pytest.mark.parametrize("queries", [1, 4])
def test_words_of_four_levels(window: int, soft_cap: float, queries: int) -> None:
    given = few_case(torch.int8, queries, [150, 1, 66], dim=64)
    assert given["k_buffer"].min() < 0 < given["k_buffer"].max()
    few_agree({**given, "window": window, "soft_cap": soft_cap}, parts=4)


@every_format
@pytest.mark.parametrize("window", [-1, 70])
def test_tree_mask(dtype: torch.dtype, window: int) -> None:
    lengths, queries = [150, 1, 66], 6
    given = {**few_case(dtype, queries, lengths, dim=64), "window": window}
    masks, starts = [], [0]
    for length in lengths:
        mask = torch.rand(queries, length + queries) < 0.4
        mask[:, -queries:] |= torch.eye(queries, dtype=torch.bool)
        masks.append(mask.flatten())
        starts.append(starts[-1] + mask.numel())
    few_agree({**given, "tree_mask": torch.cat(masks).to(torch.uint8), "tree_mask_indptr": torch.tensor(starts)}, parts=2)


@every_format
def test_a_verified_token_attends_as_a_decoded_one_does(dtype: torch.dtype) -> None:
    """The last token of a verify step, whose own key is read by its slot, and a decode step with the same keys."""
    given = few_case(dtype, 4, [100])
    verified = few.few_query_attention(**given, out=torch.empty(4, 4, 32), parts=1)
    slots = torch.cat([given["kv_indices"], given["new_slots"]])
    one = {**given, "q": given["q"][-1:], "queries": 1, "new_slots": None, "kv_indices": slots, "kv_indptr": torch.tensor([0, 104])}
    decoded = few.few_query_attention(**one, out=torch.empty(1, 4, 32), parts=1)
    torch.testing.assert_close(decoded[0], verified[-1], atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.parametrize("dtype", [None, *DTYPES], ids=["float32", *FORMATS])
@pytest.mark.parametrize("window", [-1, 20])
@pytest.mark.parametrize("images", [False, True])
def test_prefill_attention(dtype: torch.dtype | None, window: int, images: bool) -> None:
    torch.manual_seed(5)
    prefixes, lengths, dim = [30, 0, 5], [40, 17, 1], 32
    tokens, cached = sum(lengths), sum(prefixes)
    slots = torch.randperm(tokens + cached + 4)
    pool = filled(slots.numel(), 2, dim, dtype)
    reach = None
    if images:
        reach = torch.cat([torch.arange(length, dtype=torch.int32) for length in lengths])
        reach[3:12] = 11
    given = {
        **pool, "q": torch.randn(tokens, 4, dim), "k": pool["k_buffer"], "v": pool["v_buffer"], "scale": dim**-0.5, "window": window,
        "qo_indptr": torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()]), "reach": reach,
        "kv_indptr": torch.tensor([0, *torch.tensor(prefixes).cumsum(0).tolist()]), "kv_indices": slots[:cached],
        "new_slots": slots[cached : cached + tokens],
    }  # fmt: skip
    expected = prompts.prefill_attention_reference(**given)
    found = prompts.prefill_attention(**given, out=torch.full((tokens, 4, dim), 1e4), longest=max(lengths))
    torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=TOLERANCE)


def test_slots_past_two_to_the_31_elements() -> None:
    """Every launch, on memory of which only the pages that are touched exist."""
    memory = torch.zeros((1 << 31) + 64, dtype=torch.int8)
    k_cache, v_cache = (memory.as_strided((3, 1, 16), (1 << 30, 16, 1), offset) for offset in (0, 16))
    scales = [torch.zeros(3, 1) for _ in range(2)]
    torch.manual_seed(2)
    k, v = torch.randn(1, 1, 16), torch.randn(1, 1, 16)
    expected = torch.cat([quantise_reference(each, torch.int8)[0].flatten() for each in (k, v)])
    last = torch.tensor([2])
    store(k, v, k_cache, v_cache, scales[0], scales[1], last)
    assert torch.equal(memory[1 << 31 :][:32], expected)
    q = torch.randn(1, 2, 16)
    given: dict[str, Any] = {"k_scales": scales[0], "v_scales": scales[1], "out": torch.empty(1, 2, 16)}
    value = cached_rows(v_cache, last, scales[1]).expand(1, 2, 16)  # of one key
    found = few.few_query_attention(q, k_cache, v_cache, torch.tensor([0, 1]), last, 1.0, **given)
    torch.testing.assert_close(found, value)
    starts = torch.tensor([0, 1]), torch.tensor([0, 0])
    found = prompts.prefill_attention(q, k_cache, v_cache, k_cache, v_cache, *starts, last, 1.0, longest=1, new_slots=last, **given)
    torch.testing.assert_close(found, value)
    for tiles in (None, TokenTiles(1, 1)):
        memory[1 << 31 :] = 0
        angles = torch.cat([torch.ones(1, 8), torch.zeros(1, 8)], -1)
        where = (k_cache, v_cache, last, tiles, scales[0], scales[1])
        _, k, v = qkv_norm_rope(
            torch.randn(1, 48), torch.zeros(1, dtype=torch.int64), angles, torch.ones(16), torch.ones(16), 1, 1, 1e-6, *where
        )
        expected = torch.cat([quantise_reference(each, torch.int8)[0].flatten() for each in (k, v)])
        assert torch.equal(memory[1 << 31 :][:32], expected)
    assert not memory[:64].any()


def test_what_does_not_fit_is_named() -> None:
    given = few_case(torch.int8, 4, [10])
    out = torch.empty(4, 4, 32)
    with pytest.raises(ValueError, match="k_scales are missing"):
        few.few_query_attention(**{**given, "k_scales": None, "v_scales": None}, out=out)
    with pytest.raises(ValueError, match=r"k_scales are .* torch\.float64; contiguous float32"):
        few.few_query_attention(**{**given, "k_scales": given["k_scales"].double()}, out=out)
    with pytest.raises(ValueError, match="new_slots are"):
        few.few_query_attention(**{**given, "new_slots": given["new_slots"][:3]}, out=out)
    k = torch.randn(2, 2, 32)
    caches = cache(4, 2, 32, torch.int8)
    with pytest.raises(ValueError, match="k_cache is torch"):
        store(k, k, torch.zeros(4, 2, 32), caches[1], caches[2], caches[3], torch.tensor([1, 2]))
    with pytest.raises(ValueError, match="one integer slot a token"):
        store(k, k, caches[0], caches[1], caches[2], caches[3], torch.tensor([1.0, 2.0]))
