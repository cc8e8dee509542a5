"""Reads grammars that xgrammar prints, as far as needed to find rules at which an answer has no next token, or no end.

An answer has no next token at a rule that nothing begins, such as ``x`` in ``root ::= "a" x`` and ``x ::= x``. It has no end at a rule
whose texts are all infinite, such as ``x ::= "a" x``.
"""

import re
from collections.abc import Callable, Iterator

_PIECE = re.compile(r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]\*?|\{[^}]*\}|[A-Za-z_][\w.-]*|\(=|[()|]|[^\s\w]')
_RULE = re.compile(r"^(\S+?)(?:\[[^\]]*\])? ::= (.*)$", re.M)
_TAG = re.compile(r'^\s+\("(?:\\.|[^"\\])*", ([A-Za-z_][\w.-]*)\),?$', re.M)

Items = list[tuple[str, bool]]
"""A sequence of (rule's name or "" for any text, whether it may be left out)."""
Rules = dict[str, list[Items]]


def dead_end(grammar: str) -> str | None:
    """The rule at which an answer has no next token; None if there is none.

    Args:
        grammar: as ``str(xgrammar.Grammar)`` writes it.
    """
    rules = _rules(grammar)
    empty = _grown(rules, lambda items, found: all(left_out or name in found for name, left_out in items))
    begun = _grown(rules, lambda items, found: any(_known(rules, name, found) for name in _first(items, empty)))
    ended = _ended(rules)

    def dead(name: str) -> bool:
        return name in rules and name not in begun and name not in empty

    tagged: list[str] = _TAG.findall(grammar)
    for name in ("root", *tagged):
        if dead(name):
            return name
    for name in _reached(rules, grammar):
        for items in rules[name]:
            for place, (one, left_out) in enumerate(items):
                if place and not left_out and dead(one):
                    return one
                if not left_out and not _known(rules, one, ended):
                    break
    return None


def without_end(grammar: str) -> str | None:
    """A rule that an answer may reach and that no finite text matches; None if there is none.

    Args:
        grammar: as ``str(xgrammar.Grammar)`` writes it.
    """
    rules = _rules(grammar)
    ended = _ended(rules)
    return next((name for name in _reached(rules, grammar) if name not in ended), None)


def _rules(grammar: str) -> Rules:
    return {name: list(_alternatives(written)) for name, written in _RULE.findall(grammar)}


def _ended(rules: Rules) -> set[str]:
    """The rules that some finite text matches."""
    return _grown(rules, lambda items, found: all(left_out or _known(rules, name, found) for name, left_out in items))


def _known(rules: Rules, name: str, found: set[str]) -> bool:
    return name in found or name not in rules


def _first(items: Items, empty: set[str]) -> Iterator[str]:
    """Names of what may come first in a sequence."""
    for name, left_out in items:
        yield name
        if not left_out and name not in empty:
            return


def _grown(rules: Rules, holds: Callable[[Items, set[str]], bool]) -> set[str]:
    """The smallest set of rules that have an alternative for which ``holds``, given the set."""
    found: set[str] = set()
    names, before = list(rules), -1
    while len(found) > before:  # in alternating direction, since rules mostly use rules near them
        before = len(found)
        for name in names:
            if name not in found and any(holds(items, found) for items in rules[name]):
                found.add(name)
        names.reverse()
    return found


def _alternatives(written: str) -> Iterator[Items]:
    """The sequences of a rule's alternatives; lookaheads ``(=...)`` are left out."""
    items: Items = []
    depth, ahead = 0, 0
    for piece in _PIECE.findall(written):
        if piece in ("(", "(="):
            depth += 1
            ahead = ahead or (depth if piece == "(=" else 0)
        elif piece == ")":
            ahead = 0 if ahead == depth else ahead
            depth -= 1
        elif ahead:
            continue
        elif piece == "|":
            yield items
            items = []
        elif piece[0] == "{" and items:
            items[-1] = (items[-1][0], items[-1][1] or piece.startswith("{0"))
        elif piece[0] in '"[':
            items.append(("", piece == '""' or piece.endswith("]*")))
        elif piece[0].isalpha() or piece[0] == "_":
            items.append((piece, False))
    yield items


def _reached(rules: Rules, grammar: str) -> Iterator[str]:
    todo = ["root", *(name for name in _TAG.findall(grammar) if name in rules)]
    seen = set(todo)
    while todo:
        name = todo.pop()
        yield name
        new = {used for items in rules.get(name, ()) for used, _ in items if used in rules} - seen
        seen |= new
        todo += new
