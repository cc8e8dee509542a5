"""A text that names a media marker is text: it takes no picture's place, whoever wrote it and wherever it stands.

The chat template writes one marker for each medium. The same characters in a message, a call or a tool would become the same token. So a
break that is no text goes into them before the template is rendered, and its tokens are left out of the prompt.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

MARKERS = ("<|image|>", "<|audio|>", "<|video|>", "<|image>", "<image|>", "<|audio>", "<audio|>")
"""What stands for media and around them, as transformers' Gemma4Processor spells it."""
BREAK = "\ue0f4\ue0f5"
"""Two characters for private use, which no tokenizer joins with their neighbours."""
_WHOLE = re.compile("|".join(f"<(?={re.escape(marker[1:])})" for marker in MARKERS))
_TAIL = re.compile(r"<\|?[a-z]{0,5}\|?$")


def inert(value: Any) -> Any:
    """``value`` with each text in it, of any depth, broken where it spells a marker or ends as the beginning of one."""
    if isinstance(value, str):
        return _broken(value)
    if isinstance(value, Mapping):
        return {inert(key): inert(one) for key, one in value.items()}
    return [inert(one) for one in value] if isinstance(value, list | tuple) else value


def _broken(text: str) -> str:
    if "<" not in text:
        return text
    text = _WHOLE.sub(f"<{BREAK}", text)
    tail = _TAIL.search(text)  # a template may set the next text behind it
    if tail and any(marker.startswith(tail.group()) for marker in MARKERS):
        text = f"{text[: tail.start() + 1]}{BREAK}{text[tail.start() + 1 :]}"
    return text


def without_breaks(ids: Sequence[int], tokenizer: Any) -> list[int]:
    """Token ids without those of :data:`BREAK`."""
    found = tokenizer.encode(BREAK, add_special_tokens=False)
    if found[0] not in ids:
        return list(ids)
    size, made, at = len(found), list[int](), 0
    while at < len(ids):
        if ids[at] == found[0] and list(ids[at : at + size]) == found:
            at += size
        else:
            made.append(ids[at])
            at += 1
    return made


def places(text: str) -> dict[str, int]:
    """How many places for an image, a video and a sound a rendered prompt has."""
    return {kind: text.count(f"<|{kind}|>") for kind in ("image", "video", "audio")}
