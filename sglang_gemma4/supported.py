"""Is the installed SGLang the one this package was written for: its version, and the source of what a patch changes."""

import hashlib
import inspect
import textwrap
from importlib.metadata import PackageNotFoundError, version

from sglang_gemma4 import SUPPORTED_SGLANG


def fingerprint(target: object) -> str:
    """First 12 hex digits of the SHA-256 of the target's dedented source; of a list of functions, of all their sources."""
    parts = target if isinstance(target, list) else [target]
    source = "".join(textwrap.dedent(inspect.getsource(inspect.unwrap(part))) for part in parts)  # type: ignore[arg-type]
    return hashlib.sha256(source.encode()).hexdigest()[:12]


def installed_sglang() -> str | None:
    """Version of the installed SGLang distribution, or None."""
    try:
        return version("sglang")
    except PackageNotFoundError:
        return None


def version_problem() -> str | None:
    """Why the installed SGLang gets no patch at all, or None where it is the supported one."""
    found = installed_sglang()
    if found == SUPPORTED_SGLANG:
        return None
    return f"this package supports SGLang {SUPPORTED_SGLANG}, {f'{found} is' if found else 'none is'} installed"
