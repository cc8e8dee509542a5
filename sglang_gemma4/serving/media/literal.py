"""Keeps a media marker that is spelled in a text from becoming a placeholder, wherever the text is and whoever wrote it.

The chat template writes one marker for each image, video or audio. The same characters in a message, a call or a tool would become the
same token. So :data:`BREAK` is inserted into them before the template is rendered, and its tokens are removed from the prompt.
"""

import bisect
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

MARKERS = ("<|image|>", "<|audio|>", "<|video|>", "<|image>", "<image|>", "<|audio>", "<audio|>")
"""The placeholders of media and the markers around them, as transformers' Gemma4Processor spells them."""
BREAK = "\ue0f4\ue0f5"
"""Two private-use characters, which no tokenizer merges with their neighbours."""
_WHOLE = re.compile("|".join(f"<(?={re.escape(marker[1:])})" for marker in MARKERS))
_OPENS, _CLOSES = "<|channel>", "<channel|>"
"""Markers around thoughts, which templates remove from an answer; the texts on both sides then become adjacent."""
_MEETS = re.compile(rf"<\|?[a-z]{{0,5}}\|?\s*(?:{re.escape(_OPENS)}|{re.escape(_CLOSES)})")
"""What may be the beginning of a marker before a thought."""
_Ranges = list[tuple[int, int]]


def inert(value: Any) -> Any:
    """``value`` with :data:`BREAK` in each text, at any depth, of which a template would render a marker.

    Texts of one list, such as a message's parts, are treated together: templates concatenate them, without their outer blanks.
    """
    if isinstance(value, str):
        return _broken([value])[0]
    if isinstance(value, Mapping):
        return {inert(key): inert(one) for key, one in value.items()}
    if not isinstance(value, list | tuple):
        return value
    made = iter(_broken([text for one in value if (text := _text(one)) is not None]))
    return [inert(one) if _text(one) is None else _with_text(one, next(made)) for one in value]


def _text(part: Any) -> str | None:
    text = part.get("text") if isinstance(part, Mapping) else part
    return text if isinstance(text, str) else None


def _with_text(part: Any, text: str) -> Any:
    if isinstance(part, str):
        return text
    return {inert(key): text if key == "text" else inert(one) for key, one in part.items()}


def _broken(texts: list[str]) -> list[str]:
    """Texts that may be rendered one after the other, with :data:`BREAK` after the first character of each marker that they spell."""
    if not any("<" in text for text in texts):
        return texts
    stripped = [text.strip() for text in texts]
    whole, starts = "".join(stripped), [0, *itertools.accumulate(map(len, stripped))]
    views: list[_Ranges] = [[(0, len(whole))]]
    if _MEETS.search(whole):
        views.append(_without_thoughts(whole))
        views.append([one for start, text in zip(starts, stripped, strict=False) for one in _without_thoughts(text, start)])
    marked = sorted({at for view in views for at in _markers(whole, view)})
    made = []
    for text, start, end in zip(texts, starts, starts[1:], strict=False):
        shift = len(text) - len(text.lstrip()) - start + 1
        within = marked[bisect.bisect_left(marked, start) : bisect.bisect_left(marked, end)]
        cuts = [0, *(at + shift for at in within), len(text)]
        made.append(BREAK.join(text[a:b] for a, b in itertools.pairwise(cuts)))
    return made


def _markers(text: str, ranges: _Ranges) -> Iterator[int]:
    """Positions in ``text`` of the markers that its ranges spell when concatenated."""
    starts = [0, *itertools.accumulate(end - start for start, end in ranges)]
    for match in _WHOLE.finditer("".join(text[start:end] for start, end in ranges)):
        number = bisect.bisect_right(starts, match.start()) - 1
        yield ranges[number][0] + match.start() - starts[number]


def _without_thoughts(text: str, start: int = 0) -> _Ranges:
    """Ranges of an answer that a template keeps, without outer blanks, which some templates remove too; ``start`` is added to each."""
    kept = []
    for part in text.split(_CLOSES):
        left = part.partition(_OPENS)[0]
        kept.append((start + len(left) - len(left.lstrip()), start + max(len(left.rstrip()), len(left) - len(left.lstrip()))))
        start += len(part) + len(_CLOSES)
    return kept


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
    """Number of image, video and audio placeholders in a rendered prompt, by modality."""
    return {kind: text.count(f"<|{kind}|>") for kind in ("image", "video", "audio")}
