"""Base64 as clients write it: with line breaks, in the URL-safe alphabet, without padding, behind any form of ``data:``.

Up to :data:`SCANNED` characters are written in one form on the event loop. Longer ones stay as they are until the thread that loads them
finds that SGLang cannot decode them.
"""

import re
import string
from collections.abc import Iterator
from urllib.parse import unquote

SCANNED = 8192
"""Characters that are looked through on the event loop: more than a path may have."""
_HEAD = 256
"""Characters before the comma of a long ``data:`` address."""
_PIECE = 1 << 20
"""Bytes that are translated at a time, as Python's lock is held meanwhile."""
_DATA = re.compile(r"data:", re.IGNORECASE)
_WEB = re.compile(r"https?://", re.IGNORECASE)
_LETTERS = (string.ascii_letters + string.digits + "+/").encode()
_BLANKS = b" \t\r\n\v\f"
_PLAIN = bytes.maketrans(b"-_", b"+/")
_MARKS = ("-", "_", "%", *_BLANKS.decode())
"""Characters of another spelling than the standard one."""


def standard(text: str) -> str | None:
    """Base64 in the standard alphabet with padding and without blanks; None where ``text`` is no base64."""
    if not text.isascii():
        return None
    found = b"".join(piece.translate(_PLAIN, _BLANKS) for piece in _pieces(text.encode("ascii"))).rstrip(b"=")
    if not found or len(found) % 4 == 1 or any(piece.translate(None, _LETTERS) for piece in _pieces(found)):
        return None
    return (found + b"=" * (-len(found) % 4)).decode("ascii")


def _pieces(data: bytes) -> Iterator[bytes]:
    return (data[at : at + _PIECE] for at in range(0, len(data), _PIECE))


def address(text: str) -> str:
    """An address in the form that SGLang's loaders know: schemes in small letters, the payload of ``data:`` as :func:`standard`.

    What is neither, or is no base64 after all, stays as it is, and so does a payload that is longer than :data:`SCANNED`.
    """
    if text.startswith(("http://", "https://")):
        return text
    if web := _WEB.match(text):
        return web.group().lower() + text[web.end() :]
    if not _DATA.match(text):
        return text
    return _long_data(text) if len(text) > SCANNED else _data(text)


def respelled(text: str) -> str | None:
    """What SGLang's loaders can decode in the place of long base64 that they could not, or None: for the thread that loads it."""
    if len(text) <= SCANNED or _WEB.match(text) or text.startswith("file:"):
        return None
    if not _DATA.match(text):
        found = standard(text)
        return None if found is None else f"data:;base64,{found}"
    if not any(mark in text for mark in _MARKS) and (len(text) - text.find(",") - 1) % 4 == 0:
        return None  # what cannot be decoded is not its spelling
    made = _data(text)
    return None if made == text else made


def _data(text: str) -> str:
    head, comma, payload = text[len("data:") :].partition(",")
    found = standard(unquote(payload) if "%" in payload else payload)
    return text if found is None or not comma else f"data:{head.strip()},{found}"


def _long_data(text: str) -> str:
    """Only the head is read."""
    comma = text.find(",", 0, _HEAD)
    head = text[len("data:") : max(comma, 0)].strip()
    plain = f"data:{head},"
    return text if comma < 0 or text.startswith(plain) else plain + text[comma + 1 :]
