"""Where the package keeps what shortens the next start: measured choices, lists of kernels. Losing it costs seconds.

Compiled kernels are not kept here: SGLang keeps Triton's, Inductor's, FlashInfer's and CuTe's (FlashAttention-4) on
disk under one folder, ``SGLANG_CACHE_DIR`` (``~/.cache/sglang``), keyed by source, compiler, options and
architecture. Another folder, or versions and a GPU in its name, would only compile them again and share nothing with
other servers of the host.
"""

import functools
import hashlib
import json
import logging
import os
import re
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import sglang_gemma4
from sglang_gemma4.patching.switches import CACHE_DIR

logger = logging.getLogger(__name__)
DISTRIBUTIONS = ("sglang", "torch", "triton", "flash-attn-4", "nvidia-cutlass-dsl")
DEFAULT = "~/.cache/sglang-gemma4"


def root(environ: Mapping[str, str] = os.environ) -> Path | None:
    """The folder in ``SGLANG_GEMMA4_CACHE_DIR``, :data:`DEFAULT` if unset; None (keep nothing) if it is empty."""
    named = environ.get(CACHE_DIR, DEFAULT)
    return Path(named).expanduser() if named.strip() else None


@functools.cache
def versions() -> dict[str, str]:
    """Versions on which kept data depends, including this package's and its sources'."""
    return {
        "sglang-gemma4": f"{sglang_gemma4.__version__}+{_sources()}",
        **{name: _version(name) for name in DISTRIBUTIONS},
    }


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _sources() -> str:
    """A fingerprint of the kernels' and launchers' sources: an editable installation changes without a new version."""
    package = Path(sglang_gemma4.__file__).parent
    found = hashlib.sha256()
    for part in ("kernels", "attention"):
        for path in sorted((package / part).rglob("*.py")):
            found.update(path.relative_to(package).as_posix().encode() + path.read_bytes())
    return found.hexdigest()[:12]


def digest(key: Mapping[str, Any]) -> str:
    """Twelve hexadecimal digits of a JSON-ready key."""
    return hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:12]


def place(kind: str, card: str, key: Mapping[str, Any]) -> Path | None:
    """The file of one kept thing: ``ROOT/CARD/KIND-DIGEST.json``, or None where nothing is kept."""
    base = root()
    return base and base / (re.sub(r"[^A-Za-z0-9]+", "-", card).strip("-") or "card") / f"{kind}-{digest(key)}.json"


def load(kind: str, card: str, key: Mapping[str, Any]) -> Any:
    """What :func:`save` kept under the same key, or None. A malformed file or another key's is logged and left alone."""
    path = place(kind, card, key)
    if path is None or not path.exists():
        return None
    try:
        found = json.loads(path.read_text())
        if found["key"] != json.loads(json.dumps(key)):
            raise ValueError("it was written for another GPU, version or model")
        return found["value"]
    except Exception as error:  # whatever is wrong with it, the start continues without it
        logger.warning("sglang-gemma4: %s is not used: %s: %s", path, type(error).__name__, error)
        return None


def save(kind: str, card: str, key: Mapping[str, Any], value: Any) -> None:
    """Keep a JSON-ready value; several processes may do so at once. A failed write is logged; the start continues."""
    path = place(kind, card, key)
    if path is None:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        written = path.with_suffix(f".{os.getpid()}")
        written.write_text(json.dumps({"key": key, "value": value}, indent=1))
        written.replace(path)
    except OSError as error:
        logger.warning("sglang-gemma4: %s cannot be kept for the next start: %s", path, error)
