"""The interpreter of these tests (``harness/quick_interpreter.py``) against Triton's: the same bits, the same refusals, in less time."""

import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch
import triton
from triton import language as tl
from triton.runtime import interpreter

from sglang_gemma4.benchmark.kernels.chain import WAYS, Chain
from sglang_gemma4.benchmark.kernels.harness import Place
from sglang_gemma4.kernels.heads.head_argmax import Tile, head_argmax
from tests.harness import quick_interpreter
from tests.harness.recordings.recording import Recorder


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


@triton.jit
def _deciding_kernel(asked: Any, seen: Any, sums: Any, counts: Any, width: Any, times: Any, BLOCK: tl.constexpr) -> None:  # noqa: N803
    """Programs that decide by what they load, one within the other, and add to what others read."""
    row = tl.arange(0, BLOCK)
    program, total = tl.program_id(0), tl.zeros([BLOCK], tl.float32)
    want = tl.load(asked + program)
    tl.atomic_add(seen, 1)
    for step in range(want % 5):
        if want > 10 and step > 0:
            total += tl.load(sums + step * width + row) * times
            tl.atomic_add(counts + step, want)
        else:
            total -= _factor(row) * step
    if program % 3 == want % 2:
        total = total + width
    tl.store(sums + program * width + row, total + want)


@triton.jit
def _factor(row: Any) -> Any:
    return (row + 1).to(tl.float32) * 0.1


@triton.jit
def _other_factor(row: Any) -> Any:
    return row.to(tl.float32) * 3


def _doubled(tensor: Any) -> Any:
    """What no call into the interpreter's builder gave."""
    return tl.tensor(interpreter.TensorHandle(tensor.handle.data * 2, tensor.handle.dtype), tensor.type)


@triton.jit
def _strange_kernel(found: Any) -> None:
    row = tl.program_id(0) * 4 + tl.arange(0, 4)
    tl.atomic_add(found + row, 1.5)
    tl.atomic_add(found + row, _doubled(row.to(tl.float32)) + 1)


@triton.jit
def _grid_kernel(found: Any, size: Any) -> None:
    """Elements that programs share out, and how many programs there are."""
    for place in range(tl.program_id(0), size, tl.num_programs(0)):
        tl.atomic_add(found + place, tl.num_programs(0))


@triton.jit
def _kinds_kernel(found: Any, left: Any, right: Any, LEFT: tl.constexpr, RIGHT: tl.constexpr) -> None:  # noqa: N803
    whole = 1.0 if isinstance(LEFT[0], int) else 7.5
    tl.store(found + tl.program_id(0), left.x - left.y - right + 100 * (LEFT[0] - RIGHT[0]) + whole)


@triton.jit
def _telling_kernel(found: Any) -> None:
    program = tl.program_id(0)
    tl.store(found + program, program * _told(program))


def _told(tensor: Any) -> int:
    return int(str(tensor).strip("[]"))


class _Here(NamedTuple):
    x: int
    y: int


class _There(NamedTuple):
    y: int
    x: int


def grids() -> torch.Tensor:
    found = torch.zeros(3, 40)
    for row, programs in zip(found, (4, 8, 3), strict=True):
        _grid_kernel[(programs,)](row, 40)
    return found


def kinds() -> torch.Tensor:
    """Arguments of one kernel in another order, and of equal values and other kinds."""
    found = torch.zeros(6, 4)
    _kinds_kernel[(4,)](found[0], left=_Here(5, 3), right=1, LEFT=(2,), RIGHT=(1,))
    _kinds_kernel[(4,)](found[1], right=1, left=_Here(5, 3), RIGHT=(2,), LEFT=(1,))
    _kinds_kernel[(4,)](found[2], left=_There(5, 3), right=1, LEFT=(2,), RIGHT=(1,))
    _kinds_kernel[(4,)](found[3], left=_Here(5, 3), right=1, LEFT=(2.0,), RIGHT=(1,))
    _kinds_kernel[(4,)](found[4], left=_Here(5, 3), right=1.0, LEFT=(2,), RIGHT=(1,))
    _kinds_kernel[(4,)](found[5], left=_Here(5, 2**40), right=True, LEFT=(2,), RIGHT=(1,))
    return found


def telling() -> torch.Tensor:
    found = torch.zeros(5)
    _telling_kernel[(5,)](found)
    return found


def deciding(programs: int = 40, width: int = 8, times: float = 0.5, spread: int = 23) -> torch.Tensor:
    asked = (torch.arange(programs) * 7) % spread
    seen, counts, sums = torch.zeros(1, dtype=torch.int32), torch.zeros(8, dtype=torch.int64), torch.zeros(programs + 5, width)
    _deciding_kernel[(programs,)](asked, seen, sums, counts, width, times, 8)
    assert seen.item() == programs
    return torch.cat([counts.float(), sums.flatten()])


def several() -> torch.Tensor:
    """Launches of one kernel with other numbers, and with more ways through it than a recording is patient with."""
    return torch.cat([deciding(), deciding(12, 16), deciding(4, times=2.0), deciding(300, spread=301), deciding()])


def strange() -> torch.Tensor:
    found = torch.zeros(24)
    for _ in range(2):
        _strange_kernel[(6,)](found)
    return found


@pytest.fixture(params=[False, True], ids=["a launch's recordings", "kept recordings"])
def keep(request: pytest.FixtureRequest) -> Iterator[bool]:
    quick_interpreter.take_back()
    quick_interpreter.install(keep=request.param)
    yield request.param
    quick_interpreter.take_back()
    quick_interpreter.install()


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


RUNS = {
    "odd": odd,
    "head": head,
    "step": lambda: layers(3, 1),
    "verify step": lambda: layers(2, 3),
    "decisions": several,
    "grids": grids,
    "kinds": kinds,
    "strange": strange,
    "telling": telling,
}


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_the_same_bits(run: Callable[[], torch.Tensor], keep: bool) -> None:
    for _ in range(2 if keep else 1):
        quick = run()
    with quick_interpreter.as_triton_has_it(keep):
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


def test_what_a_kernel_calls_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """As tests of kernels do, which keep no recordings."""
    before = deciding()
    monkeypatch.setattr(sys.modules[__name__], "_factor", _other_factor)
    replaced = deciding()
    assert not torch.equal(before, replaced)
    with quick_interpreter.as_triton_has_it():
        assert torch.equal(deciding(), replaced)


def test_most_programs_are_repeated(keep: bool) -> None:
    """Of 40 programs that decide in as many ways as there are, and of a second launch."""
    written: list[Any] = []
    run = Recorder.run

    def counted(recording: Any, arguments: dict[str, Any]) -> None:
        written.append(recording)
        run(recording, arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Recorder, "run", counted)
        deciding(200)
        once = len(written)
        deciding(200)
    assert 5 < once < 60
    assert len(written) == (once if keep else 2 * once)


def test_it_is_quick() -> None:
    def seconds() -> float:
        layers(3, 1)
        started = time.process_time()
        layers(3, 1)
        return time.process_time() - started

    quick = seconds()
    with quick_interpreter.as_triton_has_it():
        assert seconds() > 3 * quick
