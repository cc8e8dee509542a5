"""Grammar of an object's bare keys: which keys are written without delimiters, and which keys are not declared."""

from collections.abc import Iterable

from sglang_gemma4.serving.grammar_rules import Ref, Rules, Sequence_, Text, any_but

_NOT_BARE = set(",:={}[]<>|\"'")
KEY = any_but(_NOT_BARE, 0x21)
"""A character of a bare key."""


def is_bare(key: str) -> bool:
    """Whether a key is written without delimiters."""
    return bool(key) and key == key.strip() and key.isprintable() and not _NOT_BARE & set(key)


def other_keys(rules: Rules, declared: Iterable[str], rest: Ref) -> Ref:
    """A rule for bare keys that are not among ``declared``; ``rest`` matches any number of characters of a bare key."""
    names = {key for key in declared if is_bare(key) and " " not in key}
    following: dict[str, set[str]] = {"": set()}  # by prefix of names: the characters that follow it
    for key in names:
        rules.work.spend(len(key) + (len(key) ** 2 >> 8))
        for n, character in enumerate(key):
            following.setdefault(key[:n], set()).add(character)
        following.setdefault(key, set())
    begun = {prefix: rules.reserve("key") for prefix in following}
    for prefix, rule in begun.items():
        nexts = sorted(following[prefix])
        steps: list[Sequence_] = [(Text(character), begun[prefix + character]) for character in nexts]
        steps.append((any_but(_NOT_BARE | set(nexts), 0x21), rest))
        if prefix and prefix not in names:
            steps.append(())
        rules.fill(rule, steps)
    return begun[""]
