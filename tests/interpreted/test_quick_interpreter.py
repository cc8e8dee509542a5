"""The interpreter of these tests (``tests/quick_interpreter.py``) against Triton's: the same bits, the same refusals, in less time."""

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import triton
from triton import language as tl
from triton.runtime import interpreter

from sglang_gemma4.benchmark.kernels.chain import WAYS, Chain
from sglang_gemma4.benchmark.kernels.harness import Place
from sglang_gemma4.kernels.heads.head_argmax import Tile, head_argmax
from tests import quick_interpreter


@triton.jit
def _odd_kernel(found: Any, count: Any, BLOCK: tl.constexpr) -> None:  # noqa: N803 - constants of Triton kernels are in capitals
    """Casts between types, integers of both signs, broadcasts, a scan, a tuple of reductions, a loop whose bound is loaded."""
    row = tl.arange(0, BLOCK)
    wide = (row[:, None] * 7 - row[None, :] % 3).to(tl.float16) / 3
    total = tl.sum(wide.to(tl.float32), 1) + tl.cumsum(row.to(tl.float32), 0)
    for step in range(tl.load(count)):
        total += tl.where(row < step, total.to(tl.bfloat16).to(tl.float32), -step)
    best, place = tl.max(total, 0, return_indices=True)
    narrow = (row.to(tl.uint8) + 250) >> 1  # past 255
    tl.store(found + row, total + narrow.to(tl.float32), mask=row != 3)
    tl.store(found + 3, best * place + tl.minimum(2**31 - 1, place))


@triton.jit
def _uneven_kernel(found: Any) -> None:
    tl.store(found + tl.arange(0, 8)[:, None].reshape(2, 4).broadcast_to(3, 4), 0.0)


def odd() -> torch.Tensor:
    found = torch.zeros(16)
    _odd_kernel[(2,)](found, torch.tensor([5]), 16)
    return found


def layers(requests: int, queries: int) -> torch.Tensor:
    torch.manual_seed(0)
    chain = Chain(Place("cpu", tiny=True), requests=requests, keys=5, layers=1, queries=queries)
    found: torch.Tensor = chain.run(WAYS["as served"])
    return found


def head() -> torch.Tensor:
    torch.manual_seed(0)
    hidden, weight = torch.randn(3, 48, dtype=torch.bfloat16), torch.randn(333, 48, dtype=torch.bfloat16)
    tokens, pairs = head_argmax(hidden, weight, programs=3, tile=Tile(32, 32, 4, 2, 2))
    return torch.cat([tokens.float(), pairs.float().flatten()])


@pytest.mark.parametrize("run", [odd, head, lambda: layers(3, 1), lambda: layers(2, 3)], ids=["odd", "head", "step", "verify step"])
def test_the_same_bits(run: Callable[[], torch.Tensor]) -> None:
    quick = run()
    with quick_interpreter.as_triton_has_it():
        assert interpreter.interpreter_builder.options.sanitize_overflow
        assert torch.equal(run().view(torch.int32), quick.view(torch.int32))
    assert not interpreter.interpreter_builder.options.sanitize_overflow
    assert torch.equal(run().view(torch.int32), quick.view(torch.int32))


def test_the_same_refusals() -> None:
    def refusal() -> str:
        with pytest.raises(interpreter.InterpreterError) as raised:
            _uneven_kernel[(1,)](torch.zeros(16))
        return str(raised.value)

    for _ in range(2):  # a shape that is refused is not remembered
        quick = refusal()
    with quick_interpreter.as_triton_has_it():
        assert quick == refusal()


def test_it_is_quick() -> None:
    def seconds() -> float:
        layers(3, 1)
        started = time.process_time()
        layers(3, 1)
        return time.process_time() - started

    quick = seconds()
    with quick_interpreter.as_triton_has_it():
        assert seconds() > 1.5 * quick
