"""Base64 as clients write it: with line breaks, in the alphabet for addresses, without padding, behind any form of ``data:``."""

import re
from urllib.parse import unquote

_DATA = re.compile(r"data:", re.IGNORECASE)
_WEB = re.compile(r"https?://", re.IGNORECASE)
_PAYLOAD = re.compile(r"[A-Za-z0-9+/]*={0,2}")
_PLAIN = str.maketrans({"-": "+", "_": "/", **dict.fromkeys(" \t\r\n\v\f")})


def standard(text: str) -> str | None:
    """Base64 in the standard alphabet with padding and without blanks; None where ``text`` is no base64."""
    found = text.translate(_PLAIN).rstrip("=")
    if not found or len(found) % 4 == 1 or _PAYLOAD.fullmatch(found) is None:
        return None
    return found + "=" * (-len(found) % 4)


def address(text: str) -> str:
    """An address in the form that SGLang's loaders know: schemes in small letters, the payload of ``data:`` as :func:`standard`.

    What is neither, or is no base64 after all, stays as it is.
    """
    if web := _WEB.match(text):
        return web.group().lower() + text[web.end() :]
    if not _DATA.match(text):
        return text
    head, comma, payload = text[len("data:") :].partition(",")
    found = standard(unquote(payload) if "%" in payload else payload)
    return text if found is None or not comma else f"data:{head.strip()},{found}"
