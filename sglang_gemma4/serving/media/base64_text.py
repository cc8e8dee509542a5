"""Normalises base64 as clients write it: with line breaks, in the URL-safe alphabet, without padding, after any spelling of ``data:``.

Texts of up to :data:`SCANNED` characters are normalised on the event loop. Longer texts are unchanged until the thread that loads them
finds that SGLang cannot decode them.
"""

import re
import string
from collections.abc import Iterator
from urllib.parse import unquote

SCANNED = 8192
"""Most characters that are scanned on the event loop: more than a path may have."""
_HEAD = 256
"""Most characters before the comma of a long ``data:`` address."""
_PIECE = 1 << 20
"""Bytes that are translated at a time, because this holds the GIL."""
_DATA = re.compile(r"data:", re.IGNORECASE)
_WEB = re.compile(r"https?://", re.IGNORECASE)
_LETTERS = (string.ascii_letters + string.digits + "+/").encode()
_BLANKS = b" \t\r\n\v\f"
_PLAIN = bytes.maketrans(b"-_", b"+/")
_MARKS = ("-", "_", "%", *_BLANKS.decode())
"""Characters that only occur in non-standard spellings."""


def standard(text: str) -> str | None:
    """Base64 in the standard alphabet with padding and without blanks; None if ``text`` is not base64."""
    if not text.isascii():
        return None
    found = b"".join(piece.translate(_PLAIN, _BLANKS) for piece in _pieces(text.encode("ascii"))).rstrip(b"=")
    if not found or len(found) % 4 == 1 or any(piece.translate(None, _LETTERS) for piece in _pieces(found)):
        return None
    return (found + b"=" * (-len(found) % 4)).decode("ascii")


def _pieces(data: bytes) -> Iterator[bytes]:
    return (data[at : at + _PIECE] for at in range(0, len(data), _PIECE))


def address(text: str) -> str:
    """An address in the form that SGLang's loaders expect: lower-case scheme, the payload of ``data:`` as from :func:`standard`.

    Other texts, payloads that are not base64 and payloads of texts longer than :data:`SCANNED` are unchanged.
    """
    if text.startswith(("http://", "https://")):
        return text
    if web := _WEB.match(text):
        return web.group().lower() + text[web.end() :]
    if not _DATA.match(text):
        return text
    return _long_data(text) if len(text) > SCANNED else _data(text)


def respelled(text: str) -> str | None:
    """A form that SGLang's loaders can decode of long base64 that they could not, or None. The thread that loads it calls this."""
    if len(text) <= SCANNED or _WEB.match(text) or text.startswith("file:"):
        return None
    if not _DATA.match(text):
        found = standard(text)
        return None if found is None else f"data:;base64,{found}"
    if not any(mark in text for mark in _MARKS) and (len(text) - text.find(",") - 1) % 4 == 0:
        return None  # the spelling is standard, so another spelling would not decode either
    made = _data(text)
    return None if made == text else made


def _data(text: str) -> str:
    head, comma, payload = text[len("data:") :].partition(",")
    found = standard(unquote(payload) if "%" in payload else payload)
    return text if found is None or not comma else f"data:{head.strip()},{found}"


def _long_data(text: str) -> str:
    """As :func:`_data`, but only the head is read and normalised."""
    comma = text.find(",", 0, _HEAD)
    head = text[len("data:") : max(comma, 0)].strip()
    plain = f"data:{head},"
    return text if comma < 0 or text.startswith(plain) else plain + text[comma + 1 :]
