"""Builds a context-free grammar and writes it as xgrammar's EBNF.

Rules that no finite text matches may be added, such as a schema that allows nothing or an object that requires itself.
:meth:`Rules.ebnf` leaves them out, so that an answer can always be completed.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from sglang_gemma4.serving.work_budget import Work


@dataclass(frozen=True)
class Text:
    """These characters, however they are tokenised."""

    value: str


@dataclass(frozen=True)
class Raw:
    """An expression of xgrammar's EBNF without references: a character class, ``Token(21)``, ``TagDispatch(...)``."""

    ebnf: str


@dataclass(frozen=True)
class Ref:
    """A reference to a rule."""

    name: str


@dataclass(frozen=True)
class Repeat:
    """``items`` repeated ``low`` to ``high`` times; ``high`` None: no limit."""

    items: "Sequence_"
    low: int
    high: int | None


Item = Text | Raw | Ref | Repeat
Sequence_ = tuple[Item, ...]


def quoted(text: str) -> str:
    """``text`` as an EBNF literal with escaped control characters."""
    escapes = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
    return '"' + "".join(escapes.get(c) or (c if c.isprintable() else f"\\U{ord(c):08x}") for c in text) + '"'


Range = tuple[int, int]
"""Code points from the first to the last."""


def characters(ranges: Iterable[Range]) -> Raw:
    """One character of ``ranges``, of which there is at least one; surrogates are left out.

    The ranges are split into pieces whose UTF-8 forms are products of byte ranges, because xgrammar 0.2.7 translates others wrongly:
    ``[\\uC000-\\uD7FF]`` refuses U+D55C but accepts its first byte. After that byte no token is allowed and the server ends on NaN
    probabilities.
    """
    pieces = [piece for one in all_but(all_but(ranges)) for piece in _utf8_pieces(*one)]
    return Raw("[" + "".join(f"\\U{first:08x}-\\U{last:08x}" for first, last in pieces) + "]")


def all_but(ranges: Iterable[Range]) -> list[Range]:
    """The code points outside ``ranges``, without surrogates, in order.

    xgrammar's negated classes are not used: they accept bytes that are not UTF-8 and ignore excluded characters beyond ASCII.
    """
    others, low = [], 0
    for first, last in sorted([*ranges, (0xD800, 0xDFFF), (0x110000, 0x110000)]):
        if low < first:
            others.append((low, first - 1))
        low = max(low, last + 1)
    return others


def any_but(excluded: Iterable[str], least: int = 0) -> Raw:
    """Any character from code point ``least`` except these and surrogates."""
    return characters(all_but([(0, least - 1), *((ord(character), ord(character)) for character in excluded)]))


_LONGEST = (0x7F, 0x7FF, 0xFFFF, 0x10FFFF)
"""The last code point of each UTF-8 length, one to four bytes."""


def _utf8_pieces(first: int, last: int) -> Iterator[Range]:
    """Split a range into pieces whose UTF-8 forms are products of byte ranges."""
    length = next(n for n, longest in enumerate(_LONGEST) if first <= longest)
    if last > _LONGEST[length]:
        yield from _utf8_pieces(first, _LONGEST[length])
        yield from _utf8_pieces(_LONGEST[length] + 1, last)
        return
    for behind in range(1, length + 1):  # bytes after the one that differs
        low = (1 << 6 * behind) - 1
        if first | low == last | low:
            break
        if first & low:
            yield first, first | low
            yield from _utf8_pieces((first | low) + 1, last)
            return
        if last & low != low:
            yield from _utf8_pieces(first, (last & ~low) - 1)
            yield last & ~low, last
            return
    yield first, last


@dataclass
class Rules:
    """Named rules, each a list of alternatives; a rule without alternatives matches nothing.

    Raises:
        ValueError: from :meth:`add` and :meth:`reserve`, if there would be more than ``limit`` rules; from all three methods that add,
            if ``work`` is used up.
    """

    limit: int
    work: Work = field(default_factory=Work)
    alternatives: dict[str, list[Sequence_]] = field(default_factory=dict)
    attributes: dict[str, str] = field(default_factory=dict)

    def reserve(self, hint: str) -> Ref:
        """A new rule without alternatives, for recursive references; :meth:`fill` adds them. ``hint`` begins its name."""
        if len(self.alternatives) >= self.limit:
            raise ValueError(f"it needs more than {self.limit} grammar rules")
        self.work.spend(4)
        name = f"{hint}_{len(self.alternatives)}"
        self.alternatives[name] = []
        return Ref(name)

    def fill(self, rule: Ref, alternatives: Iterable[Sequence[Item]], attribute: str = "") -> None:
        """Set a reserved rule's alternatives; ``attribute`` is one of xgrammar's, such as ``max_chars=5``."""
        filled = [tuple(one) for one in alternatives]
        self.work.spend(len(filled) + sum(_size(one) for one in filled))
        self.alternatives[rule.name] = filled
        if attribute:
            self.attributes[rule.name] = attribute

    def add(self, hint: str, alternatives: Iterable[Sequence[Item]], attribute: str = "") -> Ref:
        """A new rule with its alternatives."""
        rule = self.reserve(hint)
        self.fill(rule, alternatives, attribute)
        return rule

    def completable(self) -> set[str]:
        """Names of the rules that some finite text matches."""
        found: set[str] = set()
        waiting: dict[str, list[tuple[str, list[int]]]] = {}  # by rule: its users, and how many rules each still needs
        todo: list[str] = []
        for name, alternatives in self.alternatives.items():
            for needed in map(_needed, alternatives):
                missing = [len(needed)]
                for used in needed:
                    waiting.setdefault(used, []).append((name, missing))
                if not needed:
                    todo.append(name)
        while todo:
            name = todo.pop()
            if name in found:
                continue
            found.add(name)
            for user, missing in waiting.get(name, ()):
                missing[0] -= 1
                if not missing[0]:
                    todo.append(user)
        return found

    def ebnf(self, root: Ref) -> str | None:
        """EBNF of ``root``; None if no finite text matches it."""
        completable = self.completable()
        if root.name not in completable:
            return None
        lines, todo, written = [f"root ::= {root.name}"], [root.name], {root.name}
        while todo:
            name = todo.pop()
            kept = [
                [item for item in alternative if not isinstance(item, Repeat) or (item.high != 0 and _completes(item.items, completable))]
                for alternative in self.alternatives[name]
                if _completes(alternative, completable)
            ]
            attribute = f"[{self.attributes[name]}]" if name in self.attributes else ""
            lines.append(f"{name}{attribute} ::= {' | '.join(_written(alternative) for alternative in kept)}")
            used = sorted(_used(item for alternative in kept for item in alternative) - written)
            todo += used
            written.update(used)
        return "\n".join(lines) + "\n"


def _used(items: Iterable[Item]) -> set[str]:
    found: set[str] = set()
    for item in items:
        if isinstance(item, Ref):
            found.add(item.name)
        elif isinstance(item, Repeat):
            found |= _used(item.items)
    return found


def _needed(items: Iterable[Item]) -> set[str]:
    """The rules that must be completable for ``items`` to be."""
    found: set[str] = set()
    for item in items:
        if isinstance(item, Ref):
            found.add(item.name)
        elif isinstance(item, Repeat) and item.low:
            found |= _needed(item.items)
    return found


def _size(items: Sequence[Item]) -> int:
    """Steps of work that writing ``items`` takes."""
    steps = len(items)
    for item in items:
        if isinstance(item, Text):
            steps += len(item.value) >> 4
        elif isinstance(item, Raw):
            steps += len(item.ebnf) >> 6
        elif isinstance(item, Repeat):
            steps += _size(item.items)
    return steps


def _completes(items: Sequence_, completable: set[str]) -> bool:
    return all(
        item.name in completable
        if isinstance(item, Ref)
        else not isinstance(item, Repeat) or not item.low or _completes(item.items, completable)
        for item in items
    )


def _written(items: Sequence[Item]) -> str:
    return " ".join(_item(item) for item in items) or '""'


def _item(item: Item) -> str:
    if isinstance(item, Text):
        return quoted(item.value)
    if isinstance(item, Raw):
        return item.ebnf
    if isinstance(item, Ref):
        return item.name
    times = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((item.low, item.high))
    if times is None:
        times = f"{{{item.low},{'' if item.high is None else item.high}}}"
    return f"({_written(item.items)}){times}"
