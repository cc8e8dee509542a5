"""Checkers of single request values. Each raises ValueError with the field, the value and the limit if the value is not allowed."""

from collections.abc import Callable, Sequence
from numbers import Integral, Real
from typing import Any, NoReturn

Kind = Callable[[str, Any], None]
"""A checker: called with a field's name and its value, raises ValueError if the value is not allowed."""

SHOWN = 60
"""Most characters of a value in a message."""
INT32_MAX, INT64_MAX = 2**31 - 1, 2**63 - 1
FLOAT32_MAX, FLOAT32_TINY = 3.4e38, 1.2e-38
"""Numbers reach float32 tensors: above the first they are infinite, below the second zero."""


def shown(value: Any) -> str:
    """The value as a message shows it; a long one is cut."""
    if isinstance(value, (str, bytes)) and len(value) > SHOWN:
        value = value[:SHOWN]
        return f"{value!r}..."
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 3 * SHOWN:
        return f"an integer of {value.bit_length()} bits"
    if isinstance(value, Sequence) and len(value) > SHOWN:
        return f"{repr(list(value[:8]))[:SHOWN]}... ({len(value)} entries)"
    said = repr(value)
    return said if len(said) <= SHOWN else f"{said[:SHOWN]}..."


def refuse(field: str, value: Any, limit: str) -> NoReturn:
    """Raise the error that SGLang answers with status 400.

    Raises:
        ValueError: always; ``limit`` says what the value should be.
    """
    raise ValueError(f"{field}: {shown(value)} is not {limit}")


def is_integer(value: Any) -> bool:
    """Whether ``value`` is an integer, also of numpy, and not a boolean."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Whether ``value`` is a real number, also of numpy, and not a boolean."""
    return isinstance(value, Real) and not isinstance(value, bool)


def integer(low: int, high: int, extra: int | None = None) -> Kind:
    """An integer from ``low`` to ``high``, or ``extra``."""
    limit = f"an integer from {low} to {high}" if extra is None else f"{extra} or an integer from {low} to {high}"

    def check(field: str, value: Any) -> None:
        if not is_integer(value) or not (low <= value <= high or value == extra):
            refuse(field, value, limit)

    return check


def number(low: float, high: float) -> Kind:
    """A finite number from ``low`` to ``high``."""
    limit = f"a number from {low:g} to {high:g}"

    def check(field: str, value: Any) -> None:
        if not (is_number(value) and low <= value <= high):  # NaN is in no range
            refuse(field, value, limit)

    return check


def flag(field: str, value: Any) -> None:
    """True or false."""
    if not (value is True or value is False or type(value).__name__ == "bool_"):
        refuse(field, value, "true or false")


def text(longest: int, empty: bool = True) -> Kind:
    """A string of at most ``longest`` characters."""
    limit = f"a string of {'at most' if empty else '1 to'} {longest} characters"

    def check(field: str, value: Any) -> None:
        if not isinstance(value, str) or len(value) > longest or not (value or empty):
            refuse(field, value, limit)

    return check


def one_of(*values: Any) -> Kind:
    """One of a few values."""
    limit = f"one of {', '.join(map(repr, values))}"

    def check(field: str, value: Any) -> None:
        if not any(type(value) is type(known) and value == known for known in values):
            refuse(field, value, limit)

    return check


def entries(kind: Kind, most: int) -> Kind:
    """A list of at most ``most`` values of a kind."""
    limit = f"a list of at most {most} entries"

    def check(field: str, value: Any) -> None:
        if not isinstance(value, (list, tuple, set, frozenset)) or len(value) > most:
            refuse(field, sorted(value, key=str) if isinstance(value, (set, frozenset)) else value, limit)
        for index, entry in enumerate(value):
            kind(f"{field}[{index}]", entry)

    return check


def one_or_entries(kind: Kind, most: int) -> Kind:
    """One string that ``kind`` accepts, or a list of at most ``most`` values that it accepts."""
    several = entries(kind, most)

    def check(field: str, value: Any) -> None:
        (kind if isinstance(value, str) else several)(field, value)

    return check


def absent(why: str) -> Kind:
    """No value: clients may not set the field."""

    def check(field: str, value: Any) -> None:
        raise ValueError(f"{field}: {shown(value)} was sent, and {why}")

    return check
