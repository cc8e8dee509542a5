"""Steps of a recording: calls into the interpreter's builder in the form in which each program repeats them.

The functions and arrays are those of Triton's builder. Calls that are a single NumPy function, and the most frequent others, are made
without the builder and without handles around arrays.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np

EVER, LAUNCH, PROGRAM = range(3)


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a program's values hold what a call gave."""

    number: int
    dtype: Any
    """Of the handle; None: it is another object."""
    lasts: int
    """:data:`EVER`, :data:`LAUNCH` or :data:`PROGRAM`: for how long it is the same."""


def step_of(
    name: str,
    member: Callable[..., Any],
    blanks: tuple[list[Any], dict[str, Any]],
    found: Any,
    handles: list[Any],
    result: Any,
    interpreter: Any,
) -> Callable[[list[Any]], None]:
    """The call as each program makes it.

    Args:
        member: the builder's method.
        blanks: what it was given, with places for what differs, and by name.
        found: where its result goes.
        handles: what the program that is written down gave it; ``result`` is what it got.
    """
    given, named = blanks
    if not named:
        function = operation_of(name, interpreter)
        if function is not None and function(*[handle.data for handle in handles]).dtype != result.data.dtype:
            function = None  # the interpreter converts what it gives
        plain = (function, given) if function is not None else plain_call(name, given, handles, interpreter)
        if plain is not None:
            return _of_arrays(*plain, found)
    kind = interpreter.TensorHandle

    def filled(blank: Any, values: list[Any]) -> Any:
        if isinstance(blank, Place):
            return values[blank.number] if blank.dtype is None else _handle(kind, values[blank.number], blank.dtype)
        if isinstance(blank, list):
            return [filled(part, values) for part in blank]
        return blank

    def step(values: list[Any]) -> None:
        outcome = member(*[filled(blank, values) for blank in given], **{key: filled(blank, values) for key, blank in named.items()})
        _put(found, outcome, values)

    return step


def _handle(kind: Any, data: Any, dtype: Any) -> Any:
    """A handle, without the check that the first program's passed."""
    made = kind.__new__(kind)
    made.data, made.dtype, made.attr = data, dtype, {}
    return made


def _put(found: Any, outcome: Any, values: list[Any]) -> None:
    if isinstance(found, Place):
        values[found.number] = outcome if found.dtype is None else outcome.data
    elif isinstance(found, tuple):
        for place, part in zip(found, outcome, strict=True):
            _put(place, part, values)


def _of_arrays(function: Callable[..., Any], given: list[Any], found: Any) -> Callable[[list[Any]], None]:
    """A function of arrays as a step: of places, and of what is the same for all programs."""
    number = found.number if isinstance(found, Place) else -1
    constants = [getattr(blank, "data", blank) for blank in given]
    places = [blank.number if isinstance(blank, Place) else None for blank in given]
    if len(given) == 2 and places[0] is not None and number >= 0:
        left, right, constant = places[0], places[1], constants[1]
        if right is None:

            def of_one(values: list[Any]) -> None:
                values[number] = function(values[left], constant)

            return of_one

        def of_two(values: list[Any]) -> None:
            values[number] = function(values[left], values[right])

        return of_two
    operands = list(zip(places, constants, strict=True))

    def of_any(values: list[Any]) -> None:
        outcome = function(*[constant if place is None else values[place] for place, constant in operands])
        if number >= 0:
            values[number] = outcome

    return of_any


def plain_call(name: str, given: list[Any], handles: list[Any], interpreter: Any) -> tuple[Callable[..., Any], list[Any]] | None:
    """What a frequent call does with arrays, by a function and its operands; None: another call."""
    native = interpreter._interpreter
    if name == "create_addptr":
        size = max(1, handles[0].get_element_ty().primitive_bitwidth // 8)
        return lambda pointers, offsets: pointers + size * offsets.astype("uint64"), given
    if name == "create_masked_load" and given[2] is not None:
        dtype = interpreter._get_np_dtype(handles[0].get_element_ty())
        return lambda pointers, mask, other: native.load(pointers, mask, other, dtype), given[:3]
    if name == "create_masked_store":
        return native.store, given[:3]
    if name == "create_expand_dims":
        return np.expand_dims, given
    if name == "create_broadcast":
        return np.broadcast_to, given
    return None


class _Asked:
    """Stands where a builder's one-line methods look for ``binary_op`` and its like, and answers with the function of NumPy's."""

    def binary_op(self, *given: Any) -> Any:
        return given[-1] if given[:-1] == tuple(range(len(given) - 1)) else None

    unary_op = ternary_op = binary_op


@functools.cache
def operation_of(name: str, interpreter: Any) -> Callable[..., Any] | None:
    """The function of NumPy's that a call is, or None: the call is more than that."""
    member = vars(interpreter.InterpreterBuilder).get(name)
    if getattr(member, "__name__", "") != "<lambda>" or "op" not in "".join(member.__code__.co_names):
        return None
    try:
        found = member(_Asked(), *range(member.__code__.co_argcount - 1))
    except AttributeError:  # another method of the builder's
        return None
    return found if callable(found) else None
