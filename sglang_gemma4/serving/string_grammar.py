"""Grammar of a string's text, which does not contain its delimiter: of any or limited length, or from a regular expression.

A regular expression is enforced if it describes the whole string (``^...$``) and no text that it allows can contain the delimiter. Its
character classes are ASCII, as in ECMA-262.
"""

import re
from collections.abc import Sequence
from re import _constants, _parser  # type: ignore[attr-defined]  # Python's own reader of regular expressions has no public name
from typing import Any

from sglang_gemma4.serving.grammar_rules import Item, Range, Raw, Ref, Repeat, Rules, Sequence_, Text, all_but, any_but, characters, quoted

COUNTED = 4
"""A larger ``minLength`` is enforced only up to this: each character takes half a second to compile with the released vocabulary."""
_TIMES = 256  # a regular expression with larger repetition counts is not enforced
_CLASSES: dict[Any, list[Range]] = {
    _constants.CATEGORY_DIGIT: [(0x30, 0x39)],
    _constants.CATEGORY_WORD: [(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)],
    _constants.CATEGORY_SPACE: [(0x09, 0x0D), (0x20, 0x20)],
}
_LINE_ENDS: list[Range] = [(0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029)]  # ECMA-262: what "." does not match


def free_text(rules: Rules, delimiter: str, least: int = 0, most: int | None = None) -> Ref:
    """Text of ``least`` to ``most`` characters that does not contain ``delimiter``.

    Without ``most``, xgrammar searches for the delimiter, which compiles fast but accepts bytes that are not UTF-8. With ``most``, xgrammar
    matches and counts single characters, and refuses the last allowed character if it takes several tokens.
    """
    attribute = "" if most is None else f"max_chars={most}"
    free: Sequence_ = (Raw(f"TagDispatch(loop_after_dispatch=false,excludes=({quoted(delimiter)}))"),)
    if not least and most is None:
        return rules.add("text", [free])
    # One rule per prefix of the delimiter that the text may end with, and per number of characters still required.
    ends: list[Ref] = []
    others = sorted(set(delimiter))
    other = any_but(others)
    for owed in range(min(least, COUNTED) + 1):
        states = [rules.reserve("text") for _ in delimiter]
        after = states if owed == 0 else ends
        for matched, state in enumerate(states):
            if not owed and not matched and most is None:
                rules.fill(state, [free])
                continue
            begun = delimiter[:matched]
            steps: list[Sequence_] = [] if owed else [()]
            for character in others:
                text = begun + character
                if text != delimiter:
                    longest = max(n for n in range(len(delimiter)) if text.endswith(delimiter[:n]))
                    steps.append((Text(character), after[longest]))
            steps.append((other, after[0]))
            rules.fill(state, steps)
        ends = states
    return rules.add("text", [(ends[0],)], attribute)


def pattern(rules: Rules, expression: str, delimiter: str) -> Ref | None:
    """The strings that ``expression`` allows; None if it cannot be enforced."""
    try:
        parsed = _parser.parse(expression)
        tree = list(parsed)
        anchored = len(tree) > 1 and [tree[0], tree[-1]] == [(_constants.AT, _constants.AT_BEGINNING), (_constants.AT, _constants.AT_END)]
        if not anchored or parsed.state.flags & ~re.UNICODE or "\0" in expression or not _safe(tree[1:-1], delimiter):
            return None
        return rules.add("pattern", [_sequence(rules, tree[1:-1])])
    except (re.error, _UnknownError, RecursionError, OverflowError):
        return None


class _UnknownError(Exception):
    """A construct that cannot be enforced."""


def _safe(tree: Sequence[Any], delimiter: str) -> bool:
    """Whether at least one character of the delimiter cannot occur in any text of the expression."""
    allowed = _allowed(tree)
    return any(not any(first <= ord(character) <= last for first, last in allowed) for character in delimiter)


def _allowed(tree: Sequence[Any]) -> list[Range]:
    found: list[Range] = []
    for op, argument in tree:
        if op in (_constants.MAX_REPEAT, _constants.MIN_REPEAT):
            found += _allowed(argument[2])
        elif op is _constants.SUBPATTERN:
            found += _allowed(argument[3])
        elif op is _constants.BRANCH:
            found += [one for branch in argument[1] for one in _allowed(branch)]
        else:
            found += _class(op, argument)
    return found


def _sequence(rules: Rules, tree: Sequence[Any]) -> Sequence_:
    return tuple(_one(rules, op, argument) for op, argument in tree)


def _one(rules: Rules, op: Any, argument: Any) -> Item:
    if op in (_constants.MAX_REPEAT, _constants.MIN_REPEAT):
        low, high, inner = argument
        if low > _TIMES or (high is not _constants.MAXREPEAT and high > _TIMES):
            raise _UnknownError
        return Repeat(_sequence(rules, inner), int(low), None if high is _constants.MAXREPEAT else int(high))
    if op is _constants.SUBPATTERN:
        _, added, removed, inner = argument
        if added or removed:
            raise _UnknownError
        return rules.add("group", [_sequence(rules, inner)])
    if op is _constants.BRANCH:
        return rules.add("choice", [_sequence(rules, branch) for branch in argument[1]])
    return Text(chr(argument)) if op is _constants.LITERAL else characters(_class(op, argument))


def _class(op: Any, argument: Any) -> list[Range]:
    """The ranges that one character may be in; at least one range."""
    if op is _constants.LITERAL:
        return [(argument, argument)]
    if op is _constants.NOT_LITERAL:
        return all_but([(argument, argument)])
    if op is _constants.ANY:
        return all_but(_LINE_ENDS)
    if op is not _constants.IN:
        raise _UnknownError
    negated = argument[0][0] is _constants.NEGATE
    ranges: list[Range] = []
    for kind, what in argument[1:] if negated else argument:
        if kind is _constants.LITERAL:
            ranges.append((what, what))
        elif kind is _constants.RANGE:
            ranges.append(what)
        elif kind is _constants.CATEGORY and what in _CLASSES:
            ranges += _CLASSES[what]
        else:
            raise _UnknownError
    others = all_but(ranges)
    found = others if negated else all_but(others)
    if not found:
        raise _UnknownError
    return found
