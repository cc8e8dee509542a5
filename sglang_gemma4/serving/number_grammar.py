"""Grammar of decimal numbers between two bounds.

Lengths are limited, because a model that is forced to write a number may repeat a digit for ever. The limits are ``DIGITS`` digits before
the point, ``PLACES`` after it (more than any float above 1e-7 needs), and three in the exponent.
"""

import math

from sglang_gemma4.serving.grammar_rules import Item, Raw, Repeat, Rules, Sequence_, Text

DIGITS = 100
PLACES = 24
_DIGIT = Raw("[0-9]")
_POSITIVE = Raw("[1-9]")
ANY_INTEGER: list[Sequence_] = [
    (Repeat((Text("-"),), 0, 1), Text("0")),
    (Repeat((Text("-"),), 0, 1), _POSITIVE, Repeat((_DIGIT,), 0, DIGITS - 1)),
]
_FRACTION: Item = Repeat((Text("."), Repeat((_DIGIT,), 1, PLACES)), 0, 1)
_ZEROS: Item = Repeat((Text("."), Repeat((Text("0"),), 1, PLACES)), 0, 1)
_EXPONENT: Item = Repeat((Raw("[eE]"), Repeat((Raw("[+-]"),), 0, 1), Repeat((_DIGIT,), 1, 3)), 0, 1)
ANY_NUMBER: list[Sequence_] = [(*integer, _FRACTION, _EXPONENT) for integer in ANY_INTEGER]


def integers(low: float | None, high: float | None) -> list[Sequence_]:
    """Integers from ``low`` to ``high``, both included; None is no bound. Returns no alternative if there is no such integer."""
    if low is None and high is None:
        return ANY_INTEGER
    least = None if low is None else math.ceil(low)
    most = None if high is None else math.floor(high)
    found = _naturals(max(least or 0, 0), most)
    negative = _naturals(max(-most if most is not None else 1, 1), None if least is None else -least)
    return found + [(Text("-"), *one) for one in negative]


def numbers(rules: Rules, low: float | None, high: float | None, without_low: bool = False, without_high: bool = False) -> list[Sequence_]:
    """Numbers from ``low`` to ``high``, without exponent if there is a bound; ``without_...`` excludes the bound itself.

    A bound that is not an integer is widened to the next one.
    """
    if low is None and high is None:
        return ANY_NUMBER
    if low is not None and low != math.floor(low):
        low, without_low = math.floor(low), False
    if high is not None and high != math.ceil(high):
        high, without_high = math.ceil(high), True
    found: list[Sequence_] = []
    if high is None or high >= 0:
        bound = low is not None and low >= 0
        found += _magnitudes(rules, int(low) if bound and low is not None else 0, high, bound and without_low, without_high)
    if low is None or low < 0:
        bound = high is not None and high <= 0
        least = -int(high) if bound and high is not None else 0
        negative = _magnitudes(rules, least, None if low is None else -low, bound and without_high, without_low)
        found += [(Text("-"), *one) for one in negative]
    return found


def _magnitudes(rules: Rules, low: int, high: float | None, without_low: bool, without_high: bool) -> list[Sequence_]:
    """Numbers from ``low`` >= 0 to ``high``, without sign."""
    most = None if high is None else int(high)
    if most is not None and (most < low or (most == low and (without_low or without_high))):
        return []
    inside = _naturals(low + without_low, None if most is None else most - 1)
    found: list[Sequence_] = [(rules.add("whole", inside), _FRACTION)] if inside else []
    if without_low:
        above = (Repeat((Text("0"),), 0, PLACES - 1), _POSITIVE, Repeat((_DIGIT,), 0, PLACES - 1))
        found.append((Text(str(low)), Text("."), *above))
    if most is not None and not without_high:
        found.append((Text(str(most)), _ZEROS))
    return found


def _naturals(low: int, high: int | None) -> list[Sequence_]:
    """Integers from ``low`` >= 0 to ``high``."""
    found: list[Sequence_] = []
    while high is None or low <= high:
        width = len(str(low))
        if high is None and low == (10 ** (width - 1) if width > 1 else low and 1):
            return [*found, *([(Text("0"),)] if low == 0 else []), (_POSITIVE, Repeat((_DIGIT,), width - 1, max(width, DIGITS) - 1))]
        top = 10**width - 1 if high is None else min(high, 10**width - 1)
        found += _between(str(low), str(top))
        low = top + 1
    return found


def _between(low: str, high: str) -> list[Sequence_]:
    """Integers from ``low`` to ``high``, which have the same number of digits."""
    if not low:
        return [()]
    if low == "0" * len(low) and high == "9" * len(high):
        return [(Repeat((_DIGIT,), len(low), len(low)),)]
    if low[0] == high[0]:
        return [(Text(low[0]), *rest) for rest in _between(low[1:], high[1:])]
    rest = len(low) - 1
    found: list[Sequence_] = []
    first, last = int(low[0]), int(high[0])
    if low[1:] != "0" * rest:
        found += [(Text(low[0]), *one) for one in _between(low[1:], "9" * rest)]
        first += 1
    if high[1:] != "9" * rest:
        found += [(Text(high[0]), *one) for one in _between("0" * rest, high[1:])]
        last -= 1
    if first <= last:
        found.append((Raw(f"[{first}-{last}]" if first < last else f"[{first}]"), *([Repeat((_DIGIT,), rest, rest)] if rest else [])))
    return found
