"""A recording of a launch's NumPy calls, and the recorder that makes it."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

from tests.harness.recordings.steps import EVER, LAUNCH, PROGRAM, Place, step_of

PATIENCE, PATIENCE_KEPT = 8, 100
"""Recorded programs after which a recording, or a kept one, is given up if it served fewer than a quarter of all programs."""
EACH_PROGRAM = ("load", "store", "atomic", "descriptor_", "print", "assert", "assume", "barrier", "program_id")
"""In the names of calls that are made for each program, whatever their arguments: effects, and what tells programs apart."""
EACH_LAUNCH = ("num_programs",)
"""In the names of those that are made for each launch."""
VALUES = ("create_", "get_int", "get_uint", "get_fp", "get_null", "get_all")
"""How names of calls begin that give values; some of these give types, which are no handles and taken as they are."""


@dataclasses.dataclass
class Segment:
    """Calls up to the next decision."""

    steps: list[Callable[[list[Any]], None]] = dataclasses.field(default_factory=list)
    """Those that each program makes."""
    first_steps: list[Callable[[list[Any]], None]] = dataclasses.field(default_factory=list)
    """Those that the first program of a launch makes for all."""
    calls: list[tuple[str, Any, Any]] = dataclasses.field(default_factory=list)
    """Of each call its name, its result, with places for handles, and what its caller keeps beside it."""
    values: list[Any] = dataclasses.field(default_factory=list)
    """What the places of this segment hold before its steps: what is the same for ever."""
    decision: tuple[int, Callable[[Any], Any]] | None = None
    """The place that is decided by, and how it is read."""
    ways: dict[Any, "Segment"] = dataclasses.field(default_factory=dict)


class Recording:
    """The calls of one kernel with one set of argument types, as a tree of segments."""

    def __init__(self, kernel: Callable[..., None], interpreter: Any, kept: bool = False) -> None:
        self.kernel, self.interpreter, self.patience = kernel, interpreter, PATIENCE_KEPT if kept else PATIENCE
        self.semantic, self.builder = interpreter.interpreter_semantic, interpreter.interpreter_builder
        self.first: Segment | None = None
        self.understood = True
        self.programs = self.written = 0

    def launch(self) -> Callable[[dict[str, Any]], None]:
        """A function that runs one program of a launch; it is given the launch's arguments."""
        prepared: dict[int, list[Any]] = {}  # by segment: what its places hold before a program's steps
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
        path: list[Segment] = []
        way: Any = None
        segment = self.first
        while segment is not None:
            path.append(segment)
            start = len(values)
            ready = prepared.get(id(segment))
            if ready is None:
                values.extend(segment.values)
                for step in segment.first_steps:
                    step(values)
                prepared[id(segment)] = values[start:]
            else:
                values.extend(ready)
            for step in segment.steps:
                step(values)
            if segment.decision is None:
                return
            place, read = segment.decision
            way = read(values[place])
            segment = segment.ways.get(way)
        added = Segment()
        if path:
            path[-1].ways[way] = added
        else:
            self.first = added
        Recorder(self, [*path, added], values).run(arguments)
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


class Recorder:
    """Interprets one program: calls on the known path return known results, others are made and recorded in the path's last segment."""

    current: "Recorder | None" = None

    def __init__(self, recording: Recording, path: list[Segment], values: list[Any]) -> None:
        self.recording, self.values, self.segment = recording, values, path[-1]
        self.known = [call for segment in path for call in segment.calls]
        self.next = 0
        self.decisions = len(path) - 1
        """Still to come of those that the path knows."""
        self.places: dict[int, Place] = {}
        """By the identity of what was given, which ``kept`` keeps from being another's."""
        self.kept: list[Any] = []

    def run(self, arguments: dict[str, Any]) -> None:
        """Interpret it."""
        recording = self.recording
        for number, handle in enumerate(_handles(tuple(arguments.values()))):
            described = isinstance(handle, recording.interpreter.TensorDescHandle)
            self._keep(handle, Place(number, None if described else handle.dtype, LAUNCH))
        Recorder.current, recording.semantic.builder = self, _recording_builder(recording.builder)
        try:
            recording.kernel(**arguments)
        except BaseException:
            recording.understood = False
            raise
        finally:
            Recorder.current, recording.semantic.builder = None, recording.builder

    def _keep(self, given: Any, place: Place) -> None:
        self.kept.append(given)
        self.places[id(given)] = place

    def call(
        self, name: str, member: Callable[..., Any], given: Sequence[Any], named: dict[str, Any], beside: Any = None
    ) -> tuple[Any, Any]:
        """A call's result and what is kept beside it, from the path or by making the call."""
        if self.next < len(self.known):
            known, found, beside = self.known[self.next]
            assert name == known, f"{self.recording.kernel.__name__} makes other calls than before: {name}, not {known}"
            self.next += 1
            return self._again(found), beside
        recording = self.recording
        recording_builder, recording.semantic.builder, Recorder.current = recording.semantic.builder, recording.builder, None
        try:
            result = member(*given, **named)
        finally:
            recording.semantic.builder, Recorder.current = recording_builder, self
        if recording.understood:
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
            value = self.recording.interpreter.TensorHandle(value, found.dtype)
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
        self.segment.calls.append((name, found, beside))
        if lasts != EVER:
            step = step_of(name, member, (blanks[0], blanks[1]), found, given, result, self.recording.interpreter)
            (self.segment.first_steps if lasts == LAUNCH else self.segment.steps).append(step)

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
        if isinstance(given, (self.recording.interpreter.TensorHandle, self.recording.interpreter.TensorDescHandle)):
            raise LookupError(given)
        return given

    def _new(self, result: Any, lasts: int) -> Any:
        """A result, with new places for its handles."""
        if isinstance(result, tuple):
            return tuple(self._new(part, lasts) for part in result)
        of_tensor = isinstance(result, self.recording.interpreter.TensorHandle)
        if not of_tensor and not isinstance(result, self.recording.interpreter.TensorDescHandle):
            return result
        place = Place(len(self.values), result.dtype if of_tensor else None, lasts)
        value = result.data if of_tensor else result
        self.values.append(value)
        self.segment.values.append(value if lasts == EVER else None)
        self._keep(result, place)
        return place

    def give_up(self) -> None:
        """End the recording: this program and all later ones are interpreted to their end."""
        self.recording.understood = False

    def decide(self, handle: Any, read: Callable[[Any], Any]) -> Any:
        """The value of ``handle``, read by ``read``, by which the program chooses its branch."""
        way = read(handle.data)
        place = self.places.get(id(handle))
        if place is None:
            self.give_up()
        elif place.lasts != EVER and self.recording.understood:
            if self.decisions:
                self.decisions -= 1
            else:
                self.segment.decision = place.number, read
                self.segment.ways[way] = self.segment = Segment()
        return way


class RecordingBuilder:
    """Replaces the builder of Triton's semantic while a program is recorded."""

    def __init__(self, builder: Any) -> None:
        self._builder = builder

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._builder, name)
        if not name.startswith(VALUES):
            return member

        def call(*given: Any, **named: Any) -> Any:
            assert Recorder.current is not None
            return Recorder.current.call(name, member, given, named)[0]

        setattr(self, name, call)
        return call


_recording_builder = functools.cache(RecordingBuilder)
