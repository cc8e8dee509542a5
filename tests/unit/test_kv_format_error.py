"""How far attention over a quantised cache is from attention over an exact one, on keys and values with outlier channels.

Keys, values and queries as Gemma 4 makes them: each head's row has root mean square 1 (a norm), K and Q are then multiplied by a weight for
each channel. Four channels' weights in K are larger. Without compensation the queries' weights are 1: outlier channels carry the scores.
With it they are the inverse: outlier channels carry as much as any other, the worst case for a scale by row. ``pytest -s`` prints it all.
"""

import pytest
import torch

from sglang_gemma4.kernels.kv_cache.formats import FORMATS, HUGE, cached_rows, dequantise_reference, quantise_reference

KEYS, DIM, QUERIES = 16384, 256, 16
OUTLIERS = [3, 70, 131, 200]


def rows(count: int) -> torch.Tensor:
    made = torch.randn(count, DIM)
    return made * torch.rsqrt(made.square().mean(-1, keepdim=True))


def attention(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return torch.softmax(queries.double() @ keys.double().T * scale, dim=-1) @ values.double()


def errors(outliers: float, compensated: bool) -> tuple[float, float, float]:
    """Relative errors of attention outputs: int8 and fp8 by token and head, fp8 (e4m3) with scale 1 for all, as SGLang writes it."""
    torch.manual_seed(0)
    weight = torch.ones(DIM)
    weight[OUTLIERS] = outliers
    queries, keys, values = rows(QUERIES) / (weight if compensated else 1), rows(KEYS) * weight, rows(KEYS)
    scale = 1.5 / (queries.double() @ keys.double().T).std()
    exact, found = attention(queries, keys, values, scale), []
    for kind in (*FORMATS.values(), None):
        kept = [each.to(torch.float8_e4m3fn) if kind is None else quantise_reference(each, kind.dtype) for each in (keys, values)]
        read = [each.float() if isinstance(each, torch.Tensor) else dequantise_reference(*each) for each in kept]
        found.append(float((attention(queries, read[0], read[1], scale) - exact).norm() / exact.norm()))
    said = "queries compensate" if compensated else "queries do not"
    print(f"\nchannels x {outliers:g}, {said}: int8 {found[0]:.2%}, fp8 {found[1]:.2%}, fp8 with one scale {found[2]:.2%}")
    return found[0], found[1], found[2]


@pytest.mark.parametrize("compensated", [False, True])
@pytest.mark.parametrize(("outliers", "share"), [(1.0, 0.3), (4.0, 0.6)])
def test_int8_by_token_and_head_is_nearer_than_fp8_with_one_scale(outliers: float, share: float, compensated: bool) -> None:
    int8, fp8, one_scale = errors(outliers, compensated)
    assert int8 < share * one_scale
    assert fp8 < 1.1 * one_scale


@pytest.mark.parametrize("outliers", [16.0, 30.0])
def test_where_int8_is_no_better_and_what_is(outliers: float) -> None:
    """docs/operating.md says so: a row's scale is that of its outliers, and what the queries look for is below its steps."""
    int8, fp8, one_scale = errors(outliers, True)
    assert int8 > 1.5 * one_scale
    assert fp8 < 1.1 * one_scale
    int8, fp8, one_scale = errors(outliers, False)
    assert max(int8, fp8) < 0.9 * one_scale


@pytest.mark.parametrize("kind", FORMATS)
def test_every_row_comes_back(kind: str) -> None:
    dtype = FORMATS[kind].dtype
    rows = torch.tensor([[0.0, 0, 0, 0], [1e-38, 0, 0, 0], [3e38, -1, 0, 5], [-2.5, 1.25, 0.01, 2.5]])
    back = dequantise_reference(*quantise_reference(rows, dtype))
    assert not back[:2].any()
    assert torch.allclose(back[3], rows[3], atol=2.5 / 127)
    assert back[3, 0] == -2.5, "the largest comes back as it was"
    odd = torch.tensor([[float("nan"), 2.0, float("inf"), -float("inf")], [float("nan")] * 4])
    levels, scales = quantise_reference(odd, dtype)
    back = dequantise_reference(levels, scales)
    assert back.isfinite().all()
    assert scales.isfinite().all()
    assert back[0, 0] == 0
    assert back[0, 2] == -back[0, 3]
    assert back[0, 2] == pytest.approx(HUGE)
    assert not back[1].any()


@pytest.mark.parametrize("kind", FORMATS)
def test_levels_of_levels_are_the_same(kind: str) -> None:
    """A key that goes through the format twice is not rounded twice."""
    rows = torch.randn(64, 4, 32)
    levels, scales = quantise_reference(rows, FORMATS[kind].dtype)
    again, _ = quantise_reference(dequantise_reference(levels, scales), FORMATS[kind].dtype)
    assert torch.equal(levels.view(torch.int8), again.view(torch.int8))


@pytest.mark.parametrize("dtype", [torch.float32, *(each.dtype for each in FORMATS.values())], ids=str)
def test_rows_are_found_by_slot(dtype: torch.dtype) -> None:
    rows, slots = torch.randn(9, 2, 16), torch.tensor([[3, 8], [0, 3]])
    buffer, scales = (rows, None) if dtype == torch.float32 else quantise_reference(rows, dtype)
    assert torch.equal(cached_rows(buffer, slots, scales), dequantise_reference(buffer, scales)[slots])
