"""Is the installed SGLang the one this package was written for: its version, and the source of what a patch changes."""

import functools
import hashlib
import inspect
import json
import sys
import textwrap
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from types import FunctionType, MethodType
from typing import Literal

from sglang_gemma4 import SUPPORTED_SGLANG, __version__
from sglang_gemma4.patching.signature import signature_text

Pins = Literal["source", "signature"]
"""What a fingerprint covers."""

KNOWN = Path(__file__).with_name("known_sources.json")
"""What ``sglang-gemma4 patches --sources`` prints: by file of SGLang its digest, and the fingerprints of functions and classes in it."""


def fingerprint(target: object, pins: Pins = "source") -> str:
    """First 12 hex digits of the SHA-256 of the target's dedented source; of a list of functions, of all their
    sources.

    With ``pins="signature"`` it covers :func:`signature_text` of the source, so a changed body does not change it.

    To find the end of a function Python tokenizes it, which takes milliseconds each, in every process of a server.
    This is skipped for files whose digest :data:`KNOWN` has.
    """
    return known_fingerprint(target, pins) or source_fingerprint(target, pins)


def source_fingerprint(target: object, pins: Pins = "source") -> str:
    """:func:`fingerprint`, read from the source itself."""
    parts = [part.fget if isinstance(part, property) else part for part in (target if isinstance(target, list) else [target])]
    sources = [textwrap.dedent(inspect.getsource(inspect.unwrap(part))) for part in parts]  # type: ignore[arg-type]
    pinned = [signature_text(source) for source in sources] if pins == "signature" else sources
    return hashlib.sha256("".join(pinned).encode()).hexdigest()[:12]


def known_name(name: str, pins: Pins) -> str:
    """The key of :data:`KNOWN` for a fingerprint of a place."""
    return name if pins == "source" else f"{name} {pins}"


def known_fingerprint(target: object, pins: Pins = "source") -> str | None:
    """The fingerprint of a function or class in a file that is the one of :data:`KNOWN`, byte for byte, or None."""
    if (found := place_of(target)) is None:
        return None
    path, name = found
    known = _known().get(path)
    return known.get(known_name(name, pins)) if known and known["digest"] == digest(path) else None


def place_of(target: object) -> tuple[str, str] | None:
    """The file, from SGLang's folder, and the name there: with its first line, since a file may define one name several times."""
    part = inspect.unwrap(target) if callable(target) else target  # as the fingerprint looks through wrappers
    part = part.__func__ if isinstance(part, MethodType) else part
    if isinstance(part, FunctionType):
        file, name = part.__code__.co_filename, f"{part.__qualname__}:{part.__code__.co_firstlineno}"
    elif isinstance(part, type):
        file, name = getattr(sys.modules.get(part.__module__), "__file__", None) or "", part.__qualname__
    else:
        return None
    root = _root()
    return (file.removeprefix(root), name) if root and file.startswith(root) else None


def _root() -> str | None:
    package = sys.modules.get("sglang")
    return f"{package.__path__[0]}/" if package is not None else None


@functools.cache
def _known() -> dict[str, dict[str, str]]:
    known: dict[str, dict[str, str]] = json.loads(KNOWN.read_text()) if KNOWN.exists() else {}
    return known


@functools.cache
def digest(path: str) -> str:
    """First 12 hex digits of the SHA-256 of a file of SGLang."""
    return _digest(Path(f"{_root()}{path}"))


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]


def changed_files() -> list[str]:
    """Files of the installed SGLang that are not those of :data:`KNOWN`, or absent; SGLang is found and not imported.

    Raises:
        ValueError: there is no SGLang.
    """
    found = find_spec("sglang")
    if found is None or not found.submodule_search_locations:
        raise ValueError("SGLang is not installed")
    root = Path(found.submodule_search_locations[0])
    return [path for path, known in _known().items() if not (root / path).is_file() or known["digest"] != _digest(root / path)]


def installed_sglang() -> str | None:
    """Version of the installed SGLang distribution, or None."""
    try:
        return version("sglang")
    except PackageNotFoundError:
        return None


def reason_against_version() -> str | None:
    """Why the installed SGLang gets no patch at all, or None where it is the supported one."""
    found = installed_sglang()
    if found == SUPPORTED_SGLANG:
        return None
    return f"this package supports SGLang {SUPPORTED_SGLANG}, {f'{found} is' if found else 'none is'} installed"


def versions_line() -> str:
    """This package's version and SGLang's, or why nothing of the package is applied; one line, without importing SGLang."""
    problem = reason_against_version()
    return f"sglang-gemma4 {__version__}" + (f": nothing is applied: {problem}" if problem else f" on SGLang {SUPPORTED_SGLANG}")
