"""Numbers between bounds, every one of a range against the grammar's own regular expression."""

import re
from collections.abc import Iterable

import pytest

from sglang_gemma4.serving.grammar_rules import Item, Raw, Ref, Repeat, Rules, Sequence_, Text
from sglang_gemma4.serving.number_grammar import DIGITS, PLACES, integers, numbers


def expression(rules: Rules, alternatives: Iterable[Sequence_]) -> str:
    """The same language as a regular expression of Python; these rules do not recur."""

    def one(item: Item) -> str:
        if isinstance(item, Text):
            return re.escape(item.value)
        if isinstance(item, Raw):
            return item.ebnf
        if isinstance(item, Ref):
            return expression(rules, rules.alternatives[item.name])
        assert isinstance(item, Repeat)
        return f"(?:{''.join(map(one, item.items))}){{{item.low},{'' if item.high is None else item.high}}}"

    return f"(?:{'|'.join(''.join(map(one, alternative)) for alternative in alternatives)})"


BOUNDS = [None, -1001, -1000, -999, -110, -100, -99, -37, -10, -9, -1, 0, 1, 5, 9, 10, 11, 42, 99, 100, 101, 345, 999, 1000, 1010]


@pytest.mark.parametrize("low", BOUNDS)
def test_integers(low: int | None) -> None:
    for high in BOUNDS:
        allowed = integers(low, high)
        matches = re.compile(expression(Rules(100), allowed) if allowed else "(?!)").fullmatch
        for number in range(-1200, 1201):
            inside = (low is None or low <= number) and (high is None or number <= high)
            assert bool(matches(str(number))) == inside, (low, number, high)
        assert not matches("007")
        assert not matches("1.0")
        assert low is None or low > 0 or high is not None or matches("123456789")


def test_integers_between_fractions() -> None:
    matches = re.compile(expression(Rules(100), integers(0.5, 3.5))).fullmatch
    assert [number for number in range(-3, 9) if matches(str(number))] == [1, 2, 3]


@pytest.mark.parametrize("low", [None, -12, -2, -1, 0, 1, 3, 10])
@pytest.mark.parametrize("without_low", [False, True])
@pytest.mark.parametrize("without_high", [False, True])
def test_numbers(low: int | None, without_low: bool, without_high: bool) -> None:
    for high in [None, -12, -1, 0, 1, 2, 10, 100]:
        rules = Rules(100)
        allowed = numbers(rules, low, high, low is not None and without_low, high is not None and without_high)
        matches = re.compile(expression(rules, allowed) if allowed else "(?!)").fullmatch
        for tenths in range(-150, 1101):
            for text in (f"{tenths / 10:.1f}", f"{tenths / 10:.3f}", *([str(tenths // 10)] if tenths % 10 == 0 else [])):
                number = float(text)
                above = low is None or number > low or (number == low and not without_low)
                below = high is None or number < high or (number == high and not without_high)
                assert bool(matches(text)) == (above and below), (low, text, high)


@pytest.mark.parametrize(
    ("low", "high", "right", "wrong"), [(0.5, 1.5, ["0.5", "1.5", "1.9", "0"], ["2", "-0.1"]), (None, -0.5, ["-0.5", "-7"], ["1"])]
)
def test_a_bound_that_is_no_whole_number_moves_outwards(low: float | None, high: float | None, right: list[str], wrong: list[str]) -> None:
    rules = Rules(100)
    matches = re.compile(expression(rules, numbers(rules, low, high))).fullmatch
    assert all(map(matches, right))
    assert not any(map(matches, wrong))


def test_without_a_bound_exponents_are_allowed() -> None:
    rules = Rules(100)
    matches = re.compile(expression(rules, numbers(rules, None, None))).fullmatch
    assert all(map(matches, ["0", "-1", "1e+16", "1E-7", "-0.25", "12.5e3"]))
    assert not any(map(matches, ["01", "1.", ".5", "+1", "1e", "", "inf"]))


def test_numbers_end() -> None:
    """A model that repeats a digit for ever has to stop."""
    rules = Rules(100)
    for allowed in (
        numbers(rules, None, None),
        numbers(rules, 0, 500),
        numbers(rules, 0, None, True),
        integers(None, None),
        integers(7, None),
    ):
        matches = re.compile(expression(rules, allowed)).fullmatch
        assert not matches("8" * (DIGITS + 1))
        assert not matches("88." + "8" * (PLACES + 1))
        assert not matches("0." + "0" * PLACES + "8" * PLACES)
    assert re.fullmatch(expression(rules, integers(None, None)), "8" * DIGITS)
