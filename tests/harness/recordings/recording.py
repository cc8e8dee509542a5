"""What a program had NumPy do, and what writes it down."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

from tests.harness.recordings.steps import EVER, LAUNCH, PROGRAM, Place, step_of

PATIENCE, PATIENCE_KEPT = 8, 100
"""Programs of a tape, and of one that is kept, that are written down before it is given up where fewer than a quarter go by it."""
EACH_PROGRAM = ("load", "store", "atomic", "descriptor_", "print", "assert", "assume", "barrier", "program_id")
"""In the names of calls that are made for each program, whatever their arguments: effects, and what tells programs apart."""
EACH_LAUNCH = ("num_programs",)
"""In the names of those that are made for each launch."""
VALUES = ("create_", "get_int", "get_uint", "get_fp", "get_null", "get_all")
"""How names of calls begin that give values; some of these give types, which are no handles and taken as they are."""


@dataclasses.dataclass
class Stretch:
    """Calls up to the next decision."""

    steps: list[Callable[[list[Any]], None]] = dataclasses.field(default_factory=list)
    """Those that each program makes."""
    first_steps: list[Callable[[list[Any]], None]] = dataclasses.field(default_factory=list)
    """Those that the first program of a launch makes for all."""
    calls: list[tuple[str, Any, Any]] = dataclasses.field(default_factory=list)
    """Of each call its name, its result, with places for handles, and what its caller keeps beside it."""
    values: list[Any] = dataclasses.field(default_factory=list)
    """What the places of this stretch hold before its steps: what is the same for ever."""
    decision: tuple[int, Callable[[Any], Any]] | None = None
    """The place that is decided by, and how it is read."""
    ways: dict[Any, "Stretch"] = dataclasses.field(default_factory=dict)


class Tape:
    """Of a kernel and kinds of arguments."""

    def __init__(self, kernel: Callable[..., None], interpreter: Any, kept: bool = False) -> None:
        self.kernel, self.interpreter, self.patience = kernel, interpreter, PATIENCE_KEPT if kept else PATIENCE
        self.semantic, self.builder = interpreter.interpreter_semantic, interpreter.interpreter_builder
        self.first: Stretch | None = None
        self.understood = True
        self.programs = self.written = 0

    def launch(self) -> Callable[[dict[str, Any]], None]:
        """What runs one program of a launch, with the launch's arguments."""
        prepared: dict[int, list[Any]] = {}  # by stretch: what its places hold before a program's steps
        given: list[Any] = []

        def run(arguments: dict[str, Any]) -> None:
            if not given:
                given.extend(getattr(handle, "data", handle) for handle in _handles(tuple(arguments.values())))
            self._run(arguments, prepared, list(given))

        return run

    def _run(self, arguments: dict[str, Any], prepared: dict[int, list[Any]], values: list[Any]) -> None:
        self.programs += 1
        if not self.understood:
            self.kernel(**arguments)
            return
        path: list[Stretch] = []
        way: Any = None
        stretch = self.first
        while stretch is not None:
            path.append(stretch)
            start = len(values)
            ready = prepared.get(id(stretch))
            if ready is None:
                values.extend(stretch.values)
                for step in stretch.first_steps:
                    step(values)
                prepared[id(stretch)] = values[start:]
            else:
                values.extend(ready)
            for step in stretch.steps:
                step(values)
            if stretch.decision is None:
                return
            place, read = stretch.decision
            way = read(values[place])
            stretch = stretch.ways.get(way)
        added = Stretch()
        if path:
            path[-1].ways[way] = added
        else:
            self.first = added
        Recording(self, [*path, added], values).run(arguments)
        self.written += 1
        if self.written > self.patience and self.written > self.programs * 3 // 4:
            self.understood = False


def _handles(arguments: tuple[Any, ...]) -> list[Any]:
    """Of the tensors among a kernel's arguments."""
    found = []
    for argument in arguments:
        if isinstance(argument, tuple):
            found += _handles(argument)
        elif hasattr(argument, "handle"):
            found.append(argument.handle)
    return found


class Recording:
    """A program that is interpreted: what its path has done is not done again, what follows is written down at the path's end."""

    current: "Recording | None" = None

    def __init__(self, tape: Tape, path: list[Stretch], values: list[Any]) -> None:
        self.tape, self.values, self.stretch = tape, values, path[-1]
        self.known = [call for stretch in path for call in stretch.calls]
        self.next = 0
        self.decisions = len(path) - 1
        """Still to come of those that the path knows."""
        self.places: dict[int, Place] = {}
        """By the identity of what was given, which ``kept`` keeps from being another's."""
        self.kept: list[Any] = []

    def run(self, arguments: dict[str, Any]) -> None:
        """Interpret it."""
        tape = self.tape
        for number, handle in enumerate(_handles(tuple(arguments.values()))):
            described = isinstance(handle, tape.interpreter.TensorDescHandle)
            self._keep(handle, Place(number, None if described else handle.dtype, LAUNCH))
        Recording.current, tape.semantic.builder = self, _recorder(tape.builder)
        try:
            tape.kernel(**arguments)
        except BaseException:
            tape.understood = False
            raise
        finally:
            Recording.current, tape.semantic.builder = None, tape.builder

    def _keep(self, given: Any, place: Place) -> None:
        self.kept.append(given)
        self.places[id(given)] = place

    def call(
        self, name: str, member: Callable[..., Any], given: Sequence[Any], named: dict[str, Any], beside: Any = None
    ) -> tuple[Any, Any]:
        """A call's result and what is kept beside it, from the path or by making the call."""
        if self.next < len(self.known):
            known, found, beside = self.known[self.next]
            assert name == known, f"{self.tape.kernel.__name__} makes other calls than before: {name}, not {known}"
            self.next += 1
            return self._again(found), beside
        tape = self.tape
        recorder, tape.semantic.builder, Recording.current = tape.semantic.builder, tape.builder, None
        try:
            result = member(*given, **named)
        finally:
            tape.semantic.builder, Recording.current = recorder, self
        if tape.understood:
            self._write_down(name, member, list(given), named, result, beside)
        return result, beside

    def _again(self, found: Any) -> Any:
        """A result of the path, with this program's values."""
        if isinstance(found, tuple):
            return tuple(self._again(part) for part in found)
        if not isinstance(found, Place):
            return found
        value = self.values[found.number]
        if found.dtype is not None:
            value = self.tape.interpreter.TensorHandle(value, found.dtype)
        self._keep(value, found)
        return value

    def _write_down(self, name: str, member: Callable[..., Any], given: list[Any], named: dict[str, Any], result: Any, beside: Any) -> None:
        seen: list[Place] = []
        try:
            blanks = self._blanks([given, named], seen)
        except LookupError:
            self.give_up()
            return
        own = PROGRAM if any(word in name for word in EACH_PROGRAM) else LAUNCH if any(word in name for word in EACH_LAUNCH) else EVER
        lasts = max(own, *(place.lasts for place in seen), EVER)
        found = self._new(result, lasts)
        self.stretch.calls.append((name, found, beside))
        if lasts != EVER:
            step = step_of(name, member, (blanks[0], blanks[1]), found, given, result, self.tape.interpreter)
            (self.stretch.first_steps if lasts == LAUNCH else self.stretch.steps).append(step)

    def _blanks(self, given: Any, seen: list[Place]) -> Any:
        """What a call was given, with places for what differs between programs."""
        place = self.places.get(id(given))
        if place is not None:
            seen.append(place)
            return given if place.lasts == EVER else place
        if isinstance(given, (list, tuple)):
            return [self._blanks(part, seen) for part in given]
        if isinstance(given, dict):
            return {key: self._blanks(part, seen) for key, part in given.items()}
        if isinstance(given, (self.tape.interpreter.TensorHandle, self.tape.interpreter.TensorDescHandle)):
            raise LookupError(given)
        return given

    def _new(self, result: Any, lasts: int) -> Any:
        """A result, with new places for its handles."""
        if isinstance(result, tuple):
            return tuple(self._new(part, lasts) for part in result)
        of_tensor = isinstance(result, self.tape.interpreter.TensorHandle)
        if not of_tensor and not isinstance(result, self.tape.interpreter.TensorDescHandle):
            return result
        place = Place(len(self.values), result.dtype if of_tensor else None, lasts)
        value = result.data if of_tensor else result
        self.values.append(value)
        self.stretch.values.append(value if lasts == EVER else None)
        self._keep(result, place)
        return place

    def give_up(self) -> None:
        """What follows is not understood: this program is interpreted to its end, and so are all after it."""
        self.tape.understood = False

    def decide(self, handle: Any, read: Callable[[Any], Any]) -> Any:
        """What a program reads to decide by it."""
        way = read(handle.data)
        place = self.places.get(id(handle))
        if place is None:
            self.give_up()
        elif place.lasts != EVER and self.tape.understood:
            if self.decisions:
                self.decisions -= 1
            else:
                self.stretch.decision = place.number, read
                self.stretch.ways[way] = self.stretch = Stretch()
        return way


class Recorder:
    """Stands where Triton's semantic has its builder while a program is written down."""

    def __init__(self, builder: Any) -> None:
        self._builder = builder

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._builder, name)
        if not name.startswith(VALUES):
            return member

        def call(*given: Any, **named: Any) -> Any:
            assert Recording.current is not None
            return Recording.current.call(name, member, given, named)[0]

        setattr(self, name, call)
        return call


_recorder = functools.cache(Recorder)
