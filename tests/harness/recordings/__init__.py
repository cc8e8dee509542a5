"""Recordings of interpreted launches: the first program is interpreted, the others repeat its NumPy calls.

Most of an interpreted program's time is Python between two NumPy calls: operators are looked up, types checked, shapes compared, for each
program of a launch in the same way. Here the calls into the interpreter's builder are recorded as the first program makes them. The other
programs make only those calls, with their own numbers. What follows from a launch's arguments alone is computed once per launch.

Where a program reads a number in an ``if`` or as a loop's bound, the recording branches. A program that decides as none did before is
interpreted from there on, and its branch is recorded too. So the same functions get the same arrays in the same order, and the results
equal the interpreter's bit by bit (``tests/interpreted/test_quick_interpreter.py``).

A recording belongs to one kernel and one set of argument types. Engines keep recordings between launches. Elsewhere a test may replace what
a kernel calls, so each launch makes its own.

A call with a handle that no recorded call returned ends the recording, and the launch's programs are interpreted as ever. So does printing
a tensor. Other Python in a kernel, such as a counter or ``print`` of a text, runs only for the programs that are recorded.
"""

import inspect
import math
from collections.abc import Callable
from typing import Any

from tests.harness.recordings.recording import Recorder, Recording

FEWEST = 3
"""The fewest programs of a launch for which a recording that is not kept pays."""


def _recorded(name: str, function: Callable[..., tuple[Any, ...]], tensors: tuple[Any, ...], core: Any) -> tuple[Any, ...]:
    """Call and record a function of tensors that the interpreter runs without its builder."""
    recorder = Recorder.current
    if recorder is None:
        return function(*tensors)
    types: list[Any] = []

    def member(*handles: Any) -> tuple[Any, ...]:
        found = function(*[core.tensor(handle, tensor.type) for handle, tensor in zip(handles, tensors, strict=True)])
        types[:] = [tensor.type for tensor in found]
        return tuple(tensor.handle for tensor in found)

    handles, kinds = recorder.call(name, member, [tensor.handle for tensor in tensors], {}, types)
    return tuple(core.tensor(handle, kind) for handle, kind in zip(handles, kinds, strict=True))


def _truth(data: Any) -> bool:
    return bool(data)


def _number(data: Any) -> int:
    return int(data.squeeze())


class _NotRecorded:
    """Stands for a recording where one does not pay: every program is interpreted."""

    def __init__(self, kernel: Callable[..., None]) -> None:
        self.kernel = kernel

    def launch(self) -> Callable[[dict[str, Any]], None]:
        return lambda arguments: self.kernel(**arguments)


def _recording_for(
    kernel: Callable[..., None], arguments: dict[str, Any], interpreter: Any, core: Any, kept: dict[Any, Recording] | None
) -> Recording | _NotRecorded:
    """The recording of a kernel and its argument types; a mutable constant is compared by identity."""
    if kept is None:
        few = math.prod(interpreter.interpreter_builder.grid_dim) < FEWEST
        return _NotRecorded(kernel) if few else Recording(kernel, interpreter)

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
            kept[key] = Recording(kernel, interpreter, kept=True)
        return kept[key]
    except TypeError:  # a constant that has no hash
        return Recording(kernel, interpreter)


def install(put: Callable[[Any, str, Any], None], interpreter: Any, core: Any, keep: bool) -> None:
    """Through ``put(owner, name, value)``, by which ``quick_interpreter`` can take it back; ``keep``: recordings outlast launches."""
    kept: dict[Any, Recording] | None = {} if keep else None
    launch, patch_tensor = interpreter.GridExecutor.__call__, interpreter._patch_lang_tensor
    reduce = interpreter.ReduceScanOpInterface.apply

    def recorded_launch(self: Any, *given: Any, **named: Any) -> None:
        kernel = self.fn
        run: Callable[[dict[str, Any]], None] | None = None

        def program(**arguments: Any) -> None:
            nonlocal run
            if run is None:
                run = _recording_for(kernel, arguments, interpreter, core, kept).launch()
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
            return Recorder.current.decide(self.handle, _truth) if Recorder.current else _truth(self.handle.data)

        def number(self: Any) -> int:
            return Recorder.current.decide(self.handle, _number) if Recorder.current else _number(self.handle.data)

        def told(tell: Callable[[Any], str]) -> Callable[[Any], str]:
            def text(self: Any) -> str:
                if Recorder.current:
                    Recorder.current.give_up()
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

    put(interpreter.GridExecutor, "__call__", recorded_launch)
    put(interpreter, "_patch_lang_tensor", patch_lang_tensor)
    put(interpreter.ReduceScanOpInterface, "apply", apply)
