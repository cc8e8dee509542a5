"""Limits where media of an HTTP request come from: http(s) and data: addresses, base64, and files below the operator's folders."""

import os
from collections.abc import Mapping
from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

from sglang_gemma4.patching import switches
from sglang_gemma4.serving.media import base64_text

FIELDS = ("image_data", "video_data", "audio_data")
ELSEWHERE = ("http://", "https://", "data:")
PREPARED = ("processor_output", "precomputed_embedding", "PROCESSOR_OUTPUT", "PRECOMPUTED_EMBEDDING")
_SHOWN = 60
"""Most characters of a refused address in its error. Also, base64 up to this length must be padded, since it could be a path."""


def judge(request: Any, trusts_hashes: bool, environ: Mapping[str, str] = os.environ) -> None:
    """Check the media of a request that came over HTTP, and rewrite each address so that SGLang can only read it as what it is.

    Args:
        request: SGLang's ``GenerateReqInput`` or ``EmbeddingReqInput``, as the endpoint made it.
        trusts_hashes: whether the operator gave ``--trust-mm-content-hashes``.

    Raises:
        ValueError: a local file outside the operator's folders, features in place of media, or cache keys of the client's choice.
    """
    if getattr(request, "mm_hashes", None) and not trusts_hashes:
        raise ValueError(
            "mm_hashes: they choose the cache entries that an image's features are read from, other clients' too; leave the field out, or "
            "start the server with --trust-mm-content-hashes where only a router of yours can send requests"
        )
    folders = named_folders(environ)
    for field in FIELDS:
        data = getattr(request, field, None)
        if data is not None:
            setattr(request, field, _judged(data, field, folders))


def named_folders(environ: Mapping[str, str] = os.environ) -> list[Path]:
    """The folders of SGLANG_GEMMA4_LOCAL_MEDIA, symbolic links resolved; empty if it is not set.

    Raises:
        SwitchError: one of them is not an absolute path of a folder.
    """
    named = [Path(part) for part in environ.get(switches.LOCAL_MEDIA, "").split(":") if part.strip()]
    for folder in named:
        if not folder.is_absolute() or not folder.is_dir():
            raise switches.SwitchError(f"{switches.LOCAL_MEDIA} names {folder}, which is no absolute path of a folder")
    return [folder.resolve() for folder in named]


def _judged(data: Any, field: str, folders: list[Path]) -> Any:
    if isinstance(data, list | tuple):
        return [_judged(item, field, folders) for item in data]
    if isinstance(data, str):
        return _address(data, field, folders)
    if isinstance(data, dict):
        if data.get("format") in PREPARED:
            raise ValueError(
                f"{field}: format {data['format']!r} brings features in the place of media, which only a caller of SGLang's Engine in the "
                "same process may do; send the image or audio itself"
            )
        return data
    url = getattr(data, "url", None)
    if isinstance(url, str) and is_dataclass(data) and not isinstance(data, type):
        return replace(data, url=_address(url, field, folders))
    return data


def _address(text: str, field: str, folders: list[Path]) -> str:
    """The address to load: an http(s) or data: address as it is, base64 as a data: address, an allowed file as its resolved path.

    Long texts are not paths, and are not scanned, because this runs on the event loop.
    """
    elsewhere = base64_text.address(text)
    if elsewhere.startswith(ELSEWHERE):
        return elsewhere
    path = _allowed_file(text, folders)
    if path is not None:
        return path
    if len(text) > base64_text.SCANNED and not text.startswith("file:"):
        return f"data:;base64,{text}"  # the loader finds out whether it is base64
    encoded = None if text.startswith("file:") else base64_text.standard(text)
    if encoded is not None and (len(text) > _SHOWN or encoded == text):
        return f"data:;base64,{encoded}"
    shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
    raise ValueError(
        f"{field}: {shown!r} is no http(s) address, no data: address and no base64, nor a file that this server may read as media; an "
        f"operator names the folders of such files in {switches.LOCAL_MEDIA}"
    )


def _allowed_file(text: str, folders: list[Path]) -> str | None:
    """The resolved path of ``text`` if it is a file below one of ``folders``, otherwise None."""
    if not folders or not text.startswith(("file://", "/")) or "\0" in text or len(text) > 4096:
        return None
    try:
        path = Path(unquote(urlparse(text).path) if text.startswith("file://") else text).resolve()
        return str(path) if any(path.is_relative_to(folder) for folder in folders) and path.is_file() else None
    except (OSError, ValueError, RuntimeError):  # too long a name, a malformed address, a loop of links
        return None
