"""Builds a context-free grammar and writes it as xgrammar's EBNF.

Rules that no finite text matches (a schema that allows nothing, an object that requires itself) may be added: :meth:`Rules.ebnf` leaves
them out, so that an answer can always be completed.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field


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


def any_but(characters: Iterable[str], least: int = 0) -> Raw:
    """Any character from code point ``least`` except these and surrogates.

    Written as ranges: in negated classes xgrammar accepts bytes that are not UTF-8 and ignores excluded characters beyond ASCII.
    """
    ranges, low = [], least
    for first, last in sorted([*((ord(character), ord(character)) for character in characters), (0xD800, 0xDFFF), (0x110000, 0)]):
        if low < first:
            ranges.append(f"\\U{low:08x}-\\U{first - 1:08x}")
        low = max(low, last + 1)
    return Raw(f"[{''.join(ranges)}]")


@dataclass
class Rules:
    """Named rules, each a list of alternatives; a rule without alternatives matches nothing.

    Raises:
        ValueError: from :meth:`add` and :meth:`reserve`, if there would be more than ``limit`` rules.
    """

    limit: int
    alternatives: dict[str, list[Sequence_]] = field(default_factory=dict)
    attributes: dict[str, str] = field(default_factory=dict)

    def reserve(self, hint: str) -> Ref:
        """A new rule without alternatives, for recursive references; :meth:`fill` adds them. ``hint`` begins its name."""
        if len(self.alternatives) >= self.limit:
            raise ValueError(f"it needs more than {self.limit} grammar rules")
        name = f"{hint}_{len(self.alternatives)}"
        self.alternatives[name] = []
        return Ref(name)

    def fill(self, rule: Ref, alternatives: Iterable[Sequence[Item]], attribute: str = "") -> None:
        """Set a reserved rule's alternatives; ``attribute`` is one of xgrammar's, such as ``max_chars=5``."""
        self.alternatives[rule.name] = [tuple(one) for one in alternatives]
        if attribute:
            self.attributes[rule.name] = attribute

    def add(self, hint: str, alternatives: Iterable[Sequence[Item]], attribute: str = "") -> Ref:
        """A new rule with its alternatives."""
        rule = self.reserve(hint)
        self.fill(rule, alternatives, attribute)
        return rule

    def completable(self) -> set[str]:
        """The rules that some finite text matches."""
        found: set[str] = set()
        users: dict[str, list[str]] = {}
        for name, alternatives in self.alternatives.items():
            for used in _used(item for alternative in alternatives for item in alternative):
                users.setdefault(used, []).append(name)
        todo = list(self.alternatives)
        while todo:
            name = todo.pop()
            if name not in found and any(_completes(alternative, found) for alternative in self.alternatives[name]):
                found.add(name)
                todo += users.get(name, [])
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
