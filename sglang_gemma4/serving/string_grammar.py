"""Grammar of the text of a string, which does not contain its delimiter: of any or limited length, or by a regular expression.

A regular expression is enforced if it describes the whole string (``^...$``) and no text that it allows can contain the delimiter. Its
character classes are ASCII, as in ECMA-262.
"""

import re
from collections.abc import Sequence
from re import _constants, _parser  # type: ignore[attr-defined]  # Python's own reader of regular expressions has no public name
from typing import Any

from sglang_gemma4.serving.grammar_rules import Item, Raw, Ref, Repeat, Rules, Sequence_, Text, any_but, quoted

COUNTED = 4
"""A larger ``minLength`` is enforced up to this only: each character takes half a second to compile with the released vocabulary."""
_TIMES = 256  # a regular expression with larger repetition counts is not enforced
_CLASSES = {_constants.CATEGORY_DIGIT: "0-9", _constants.CATEGORY_WORD: "0-9A-Za-z_", _constants.CATEGORY_SPACE: " \t\n\r\f\v"}


def free_text(rules: Rules, delimiter: str, least: int = 0, most: int | None = None) -> Ref:
    """Text of ``least`` to ``most`` characters that does not contain ``delimiter``.

    Without ``most`` xgrammar searches for the delimiter, which compiles fast but accepts bytes that are not UTF-8. With it characters are
    matched one by one and counted by xgrammar, which refuses the last allowed character if it takes several tokens.
    """
    attribute = "" if most is None else f"max_chars={most}"
    free: Sequence_ = (Raw(f"TagDispatch(loop_after_dispatch=false,excludes=({quoted(delimiter)}))"),)
    if not least and most is None:
        return rules.add("text", [free])
    # One rule per prefix of the delimiter that the text may end with, and per number of characters still required.
    ends: list[Ref] = []
    for owed in range(min(least, COUNTED) + 1):
        states = [rules.reserve("text") for _ in delimiter]
        after = states if owed == 0 else ends
        for matched, state in enumerate(states):
            if not owed and not matched and most is None:
                rules.fill(state, [free])
                continue
            begun = delimiter[:matched]
            steps: list[Sequence_] = [] if owed else [()]
            others = sorted(set(delimiter))
            for character in others:
                text = begun + character
                if text != delimiter:
                    longest = max(n for n in range(len(delimiter)) if text.endswith(delimiter[:n]))
                    steps.append((Text(character), after[longest]))
            steps.append((any_but(others), after[0]))
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
    """Whether the expression allows some character of the delimiter nowhere."""
    allowed = _classes(tree)
    return any(not any(re.match(one, character) for one in allowed) for character in delimiter)


def _classes(tree: Sequence[Any]) -> list[str]:
    found: list[str] = []
    for op, argument in tree:
        if op in (_constants.MAX_REPEAT, _constants.MIN_REPEAT):
            found += _classes(argument[2])
        elif op is _constants.SUBPATTERN:
            found += _classes(argument[3])
        elif op is _constants.BRANCH:
            found += [one for branch in argument[1] for one in _classes(branch)]
        else:
            found.append(_class(op, argument))
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
    return Text(chr(argument)) if op is _constants.LITERAL else Raw(_class(op, argument))


def _class(op: Any, argument: Any) -> str:
    """One character's class, in brackets."""
    if op is _constants.LITERAL:
        return f"[{_in_class(chr(argument))}]"
    if op is _constants.NOT_LITERAL:
        return f"[^{_in_class(chr(argument))}]"
    if op is _constants.ANY:
        return "[^\\n\\r]"
    if op is not _constants.IN:
        raise _UnknownError
    negated = argument[0][0] is _constants.NEGATE
    parts = []
    for kind, what in argument[1:] if negated else argument:
        if kind is _constants.LITERAL:
            parts.append(_in_class(chr(what)))
        elif kind is _constants.RANGE:
            parts.append("-".join(_in_class(chr(end)) for end in what))
        elif kind is _constants.CATEGORY and what in _CLASSES:
            parts.append("".join(c if c == "-" or c.isalnum() else _in_class(c) for c in _CLASSES[what]))
        else:
            raise _UnknownError
    return f"[{'^' if negated else ''}{''.join(parts)}]"


def _in_class(character: str) -> str:
    return character if character.isascii() and character.isalnum() else f"\\U{ord(character):08x}"
