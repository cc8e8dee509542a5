"""Interpreted launches of many programs: the first is interpreted, the others repeat what it had NumPy do.

Of an interpreted program nearly all is Python between one NumPy call and the next: operators are looked up, types checked, shapes compared,
for each program of a launch in the same way. Here the calls into the interpreter's builder are written down as the first program makes
them, and the others make only those calls, with their own numbers; what follows from a launch's arguments alone is computed once a launch.
Where a program reads a number to decide by it, in an ``if`` or as a loop's bound, the tape branches: a program that decides as none did
before is interpreted, with the numbers that it has up to there, and its way is written down too. So the same functions get the same arrays
in the same order, and the results are the interpreter's bit by bit (``tests/interpreted/test_quick_interpreter.py``).

A tape is of one kernel and kinds of arguments. Engines keep theirs; elsewhere a test may replace what a kernel calls, so that each launch
has a tape of its own.

A call with a handle that no recorded call gave is not understood: it ends the recording, and a launch's programs are interpreted as ever;
so does a tensor that is printed. What else Python does in a kernel, as a counter or ``print`` of a text, it does for the programs that are
written down alone.
"""

import inspect
import math
from collections.abc import Callable
from typing import Any

from tests.harness.recordings.recording import Recording, Tape

FEWEST = 3
"""Programs of a launch from which recording pays for this launch alone."""


def _recorded(name: str, function: Callable[..., tuple[Any, ...]], tensors: tuple[Any, ...], core: Any) -> tuple[Any, ...]:
    """Tensors from tensors, by what the interpreter does without its builder."""
    recording = Recording.current
    if recording is None:
        return function(*tensors)
    types: list[Any] = []

    def member(*handles: Any) -> tuple[Any, ...]:
        found = function(*[core.tensor(handle, tensor.type) for handle, tensor in zip(handles, tensors, strict=True)])
        types[:] = [tensor.type for tensor in found]
        return tuple(tensor.handle for tensor in found)

    handles, kinds = recording.call(name, member, [tensor.handle for tensor in tensors], {}, types)
    return tuple(core.tensor(handle, kind) for handle, kind in zip(handles, kinds, strict=True))


def _truth(data: Any) -> bool:
    return bool(data)


def _number(data: Any) -> int:
    return int(data.squeeze())


class _Untaped:
    """Where recording does not pay."""

    def __init__(self, kernel: Callable[..., None]) -> None:
        self.kernel = kernel

    def launch(self) -> Callable[[dict[str, Any]], None]:
        return lambda arguments: self.kernel(**arguments)


def _tape_for(
    kernel: Callable[..., None], arguments: dict[str, Any], interpreter: Any, core: Any, kept: dict[Any, Tape] | None
) -> Tape | _Untaped:
    """That of the kernel and kinds of arguments; constants that are mutable objects count by what they are, not by what they hold."""
    if kept is None:
        few = math.prod(interpreter.interpreter_builder.grid_dim) < FEWEST
        return _Untaped(kernel) if few else Tape(kernel, interpreter)

    def kind(argument: Any) -> Any:
        if isinstance(argument, tuple):
            return type(argument), *map(kind, argument)
        if isinstance(argument, core.constexpr):
            return core.constexpr, kind(argument.value)
        handle = getattr(argument, "handle", None)
        return (type(argument), argument) if handle is None else (str(argument.type), getattr(handle, "padding", None))

    key = kernel, tuple((name, kind(value)) for name, value in arguments.items())
    try:
        if key not in kept:
            kept[key] = Tape(kernel, interpreter, kept=True)
        return kept[key]
    except TypeError:  # a constant that has no hash
        return Tape(kernel, interpreter)


def install(put: Callable[[Any, str, Any], None], interpreter: Any, core: Any, keep: bool) -> None:
    """Through ``put(owner, name, value)``, by which ``quick_interpreter`` can take it back; ``keep``: tapes outlast launches."""
    kept: dict[Any, Tape] | None = {} if keep else None
    launch, patch_tensor = interpreter.GridExecutor.__call__, interpreter._patch_lang_tensor
    reduce = interpreter.ReduceScanOpInterface.apply

    def taped_launch(self: Any, *given: Any, **named: Any) -> None:
        kernel = self.fn
        run: Callable[[dict[str, Any]], None] | None = None

        def program(**arguments: Any) -> None:
            nonlocal run
            if run is None:
                run = _tape_for(kernel, arguments, interpreter, core, kept).launch()
            run(arguments)

        program.__name__, program.__module__, program.interpreted = kernel.__name__, kernel.__module__, kernel  # type: ignore[attr-defined]
        program.__signature__ = inspect.signature(kernel)  # type: ignore[attr-defined]
        self.fn = program
        try:
            launch(self, *given, **named)
        finally:
            self.fn = kernel

    def patch_lang_tensor(tensor: Any, scope: Any) -> None:
        patch_tensor(tensor, scope)
        transposed = tensor.T.fget

        def truth(self: Any) -> bool:
            if self.handle.data.size != 1:
                return True  # as the interpreter has it: what decides is a scalar
            return Recording.current.decide(self.handle, _truth) if Recording.current else _truth(self.handle.data)

        def number(self: Any) -> int:
            return Recording.current.decide(self.handle, _number) if Recording.current else _number(self.handle.data)

        def told(tell: Callable[[Any], str]) -> Callable[[Any], str]:
            def text(self: Any) -> str:
                if Recording.current:
                    Recording.current.give_up()
                return tell(self)

            return text

        for name in ("__str__", "__repr__"):
            scope.set_attr(tensor, name, told(getattr(tensor, name)))
        scope.set_attr(tensor, "__bool__", truth)
        scope.set_attr(tensor, "__index__", number)
        scope.set_attr(tensor, "T", property(lambda self: _recorded("transposed", lambda one: (transposed(one),), (self,), core)[0]))

    def apply(self: Any, given: Any) -> Any:
        if not isinstance(given, tuple):
            return reduce(self, given)  # which comes back here with a tuple
        return _recorded("reduced", lambda *tensors: reduce(self, tensors), given, core)

    put(interpreter.GridExecutor, "__call__", taped_launch)
    put(interpreter, "_patch_lang_tensor", patch_lang_tensor)
    put(interpreter.ReduceScanOpInterface, "apply", apply)
