"""``--enable-deterministic-inference`` on a card: a request's bits are the same in every batch."""

import json
import random
from pathlib import Path

import pytest
import torch

from sglang_gemma4.kernels.attention import few_query_attention as op
from tests.gpu.test_kernels import LAYERS

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

BATCHES = (1, 2, 3, 7, 8, 16, 31, 32, 64, 79, 80)


def _first_outputs(heads: int, kv_heads: int, dim: int, window: int, dtype: torch.dtype, part_keys: int | None) -> list[torch.Tensor]:
    """The first request's output in each batch; the others' lengths are random."""
    torch.manual_seed(0)
    rng, most = random.Random(0), min(6000, window + 1) if window >= 0 else 6000
    lengths = [min(5000, most), *(rng.randint(1, most) for _ in range(max(BATCHES) - 1))]
    total = sum(lengths)
    keys, values = (torch.randn(total, kv_heads, dim, device="cuda").to(dtype) for _ in range(2))
    slots = torch.arange(total, device="cuda")
    q = torch.randn(len(lengths), heads, dim, device="cuda").to(dtype)
    indptr = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32, device="cuda")
    return [
        op.few_query_attention(
            q[:batch], keys, values, indptr[: batch + 1], slots, dim**-0.5, out=torch.empty_like(q[:batch]), part_keys=part_keys
        )[0].clone()
        for batch in BATCHES
    ]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("heads", "kv_heads", "dim", "window"), LAYERS)
def test_a_request_s_attention_has_the_same_bits_in_every_batch(
    heads: int, kv_heads: int, dim: int, window: int, dtype: torch.dtype
) -> None:
    first, *others = _first_outputs(heads, kv_heads, dim, window, dtype, 256)
    assert all(torch.equal(first, other) for other in others)


def test_without_fixed_parts_it_has_not() -> None:
    """So the test above can fail."""
    first, *others = _first_outputs(16, 2, 512, -1, torch.float16, None)
    assert not all(torch.equal(first, other) for other in others)


def test_the_run_says_so(tmp_path: Path) -> None:
    """The whole model: one tiny engine through ``deterministic.py``."""
    import subprocess
    import sys

    from sglang_gemma4.tiny import checkpoints

    out = tmp_path / "out.json"
    command = [sys.executable, "-m", "tests.gpu.deterministic", str(checkpoints.SHIPPED / "tiny-31b"), str(out), "--tokens", "16"]
    subprocess.run(command, check=True, cwd=Path(__file__).parents[2], timeout=600)
    assert all(row["same"] for row in json.loads(out.read_text())["batches"])
