"""Refuses texts that cannot fit the context before they are tokenised, which takes a second per megabyte."""

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

QUICK = 4096
"""Most characters that are tokenised on the event loop: less than a millisecond."""


@lru_cache(4)
def _longest_token(tokenizer: Any) -> int:
    return max(map(len, tokenizer.get_vocab()))


def characters(texts: Any) -> int:
    """Characters of a text, or of all texts in lists."""
    if isinstance(texts, str):
        return len(texts)
    return sum(map(characters, texts)) if isinstance(texts, list | tuple) else 0


def check(texts: Iterable[str], tokenizer: Any, context: int) -> None:
    """Check the length of one prompt's texts.

    Args:
        context: the most tokens of a prompt.

    Raises:
        ValueError: the texts have more characters than ``context`` of the longest tokens.
    """
    found = sum(map(len, texts))
    if found <= context:
        return
    most = context * _longest_token(tokenizer)
    if found > most:
        raise ValueError(f"a prompt of {found} characters is longer than the context of {context} tokens in any case; send at most {most}")


def of_messages(messages: Iterable[Any]) -> Iterable[str]:
    """The texts of a chat's messages."""
    for message in messages:
        content = getattr(message, "content", None)
        if isinstance(content, str):
            yield content
        for part in content if isinstance(content, list) else ():
            text = getattr(part, "text", None)
            if isinstance(text, str):
                yield text
