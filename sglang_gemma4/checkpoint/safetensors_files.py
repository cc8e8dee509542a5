"""Lists the tensors in a checkpoint's safetensors files, from their headers and the index.

A broken file raises an error of one line.

Neither torch nor sglang is imported.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sglang_gemma4.checkpoint import PreflightError

INDEX = "model.safetensors.index.json"
ADAPTER = "adapter_"
"""Prefix of a LoRA adapter's file name, stored next to a model's files."""
AGAIN = "download it, or write the checkpoint, again"
_LENGTH = 8
"""Bytes of the length field in front of the header."""
_OF = re.compile(r"(.*)-(\d+)-of-(\d+)\.safetensors$")
_POINTER = b"version https://git-lfs"


@dataclass(frozen=True)
class Stored:
    """A tensor of a checkpoint: its file, safetensors dtype name, shape, and byte offset in the file."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    start: int


def tensors_of(folder: Path) -> dict[str, Stored] | None:
    """Tensors by name, from the files that SGLang would load; None if the folder has no safetensors files.

    Raises:
        PreflightError: a file is missing, cut short or unreadable.
    """
    files = _files(folder)
    if not files:
        return None
    found: dict[str, Stored] = {}
    for file in files:
        found.update(header(file))
    return found


def stored_at(path: str, revision: str | None = None, cache: str | None = None) -> dict[str, Stored] | None:
    """:func:`tensors_of` a checkpoint directory, or a hub model that is completely in the cache; None for others."""
    if Path(path).is_dir():
        return tensors_of(Path(path))
    folder = cached(path, revision, cache)
    try:
        return tensors_of(folder) if folder is not None else None
    except PreflightError:
        return None  # what is missing will be downloaded


def cached(model: str, revision: str | None, cache: str | None = None) -> Path | None:
    """The directory of a hub's model in the cache, or None."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(model, revision=revision, cache_dir=cache, local_files_only=True, allow_patterns="*.safetensors*"))
    except (HFValidationError, LocalEntryNotFoundError):
        return None


def _files(folder: Path) -> list[Path]:
    """The files that the index names, or all if there is no index. SGLang ignores files that are not in the index."""
    index = folder / INDEX
    if not index.is_file():
        files = sorted(file for file in folder.glob("*.safetensors") if not file.name.startswith(ADAPTER))
        if (missing := _missing_numbers(files)) is not None:
            raise PreflightError(f"{folder} lacks {missing}, which its other files count; {AGAIN}")
        return files
    where = _json(index, index.read_bytes()).get("weight_map")
    if not isinstance(where, dict) or not all(isinstance(name, str) for name in where.values()):
        raise PreflightError(f"{index} has no weight_map from tensors to files; {AGAIN}")
    files = [folder / name for name in sorted(set(where.values()))]
    missing_files = [file.name for file in files if not file.is_file()]
    if missing_files:
        more = f" and {len(missing_files) - 1} more" if len(missing_files) > 1 else ""
        raise PreflightError(f"{folder} lacks {missing_files[0]}{more}, which {INDEX} names; {AGAIN}")
    return files


def _missing_numbers(files: Sequence[Path]) -> str | None:
    """The first absent file of a series such as ``…-00001-of-00003.safetensors``, or None."""
    names = {file.name for file in files}
    for found in filter(None, map(_OF.match, sorted(names))):
        every = [f"{found[1]}-{number:0{len(found[2])}d}-of-{found[3]}.safetensors" for number in range(int(found[3]) + 1)]
        counted = every[:-1] if every[0] in names else every[1:]
        if (missing := next((name for name in counted if name not in names), None)) is not None:
            return missing
    return None


def header(file: Path) -> dict[str, Stored]:
    """The tensors of one safetensors file.

    Raises:
        PreflightError: the file is cut short, or is not a safetensors file.
    """
    size = file.stat().st_size
    with file.open("rb") as opened:
        first = opened.read(len(_POINTER))
        if first == _POINTER:
            raise PreflightError(f"{file} is a pointer of Git LFS, not the file itself; run `git lfs pull` there")
        length = int.from_bytes(first[:_LENGTH], "little")
        if size < _LENGTH or _LENGTH + length > size:
            raise PreflightError(f"{file} is cut short: {size} bytes are less than its header; {AGAIN}")
        opened.seek(_LENGTH)
        entries = _json(file, opened.read(length))
    entries.pop("__metadata__", None)
    try:
        found = {
            name: (Stored(file, one["dtype"], tuple(one["shape"]), _LENGTH + length + one["data_offsets"][0]), one["data_offsets"][1])
            for name, one in entries.items()
        }
    except (KeyError, TypeError, IndexError) as error:
        raise PreflightError(f"{file} has a header that is none of safetensors ({error!r}); {AGAIN}") from error
    needed = _LENGTH + length + max((end for _, end in found.values()), default=0)
    if needed > size:
        raise PreflightError(f"{file} is cut short: it has {size} bytes, and its header counts {needed}; {AGAIN}")
    return {name: stored for name, (stored, _) in found.items()}


def _json(file: Path, content: bytes) -> dict[str, Any]:
    try:
        read = json.loads(content)
    except ValueError as error:
        what = "is not valid JSON" if file.name == INDEX else "has a header that is none of safetensors"
        raise PreflightError(f"{file} {what} ({error}); {AGAIN}") from error
    if not isinstance(read, dict):
        raise PreflightError(f"{file} holds a {type(read).__name__} where a JSON object is expected; {AGAIN}")
    return read
