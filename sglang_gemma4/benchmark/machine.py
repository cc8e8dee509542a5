"""Versions, GPU and environment of a run. A probe that fails is left out; nothing here imports SGLang."""

import contextlib
import ctypes
import hashlib
import json
import os
import platform
import re
import subprocess
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from typing import Any

from sglang_gemma4 import __version__

DISTRIBUTIONS = ("sglang", "sglang-kernel", "torch", "triton", "transformers", "flashinfer-python")
PACKAGE = Path(__file__).parents[1]
PREFIXES = ("SGLANG_", "CUDA_", "TORCH_", "TRITON_", "NCCL_", "OMP_")


def facts(command: Sequence[str]) -> dict[str, Any]:
    """What every raw header holds besides its plan: ``command`` (with its flags), ``versions``, ``device`` and ``environment``."""
    return {"command": [without_paths(word) for word in command], "versions": versions(), "device": device(), "environment": environment()}


def versions() -> dict[str, str]:
    """Versions of the package (``commit`` and ``sources``), of Python, and of what the package runs on."""
    found = {"sglang-gemma4": __version__, "python": platform.python_version(), "commit": commit(), "sources": sources()}
    for name in DISTRIBUTIONS:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def commit() -> str:
    """The commit of the checkout or of the address that pip installed from, else ``unknown``; then :func:`sources` identifies the code."""
    if described := _printed(["git", "-C", str(PACKAGE), "describe", "--always", "--dirty", "--abbrev=12"]):
        return described
    with contextlib.suppress(PackageNotFoundError, ValueError, KeyError, TypeError):
        return str(json.loads(distribution("sglang-gemma4").read_text("direct_url.json") or "")["vcs_info"]["commit_id"][:12])
    return "unknown"


def sources(package: Path = PACKAGE) -> str:
    """A digest of the package's Python and JSON files, patches included; a copy without git has the same as a checkout of its commit."""
    found: dict[str, Path] = {}
    for root, prefix in ((package, Path()), ((package / "patches").resolve(), Path("patches"))):  # in a checkout patches/ is a link
        paths = (path for path in root.rglob("*") if path.suffix in (".py", ".json") and path.is_file())
        found |= {(prefix / path.relative_to(root)).as_posix(): path for path in paths}
    digest = hashlib.sha256()
    for name in sorted(found):
        digest.update(f"{name}\0".encode() + found[name].read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def no_cuda() -> str | None:
    """Why no CUDA GPU can be used, as the driver reports within milliseconds, or None; torch is asked only if it is imported anyway."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "no NVIDIA driver"
    count = ctypes.c_int()
    if status := driver.cuInit(0):
        return f"the NVIDIA driver answers {status}"
    return None if driver.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value else "the NVIDIA driver sees no GPU"


def device() -> dict[str, Any]:
    """The GPUs, or the processor if there are none: ``name``, ``count``, ``memory_gib`` of one, ``driver``."""
    if listed := _printed(["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits"]):
        cards = listed.splitlines()
        name, mebibytes, driver = cards[0].split(", ")
        return {"name": name, "count": len(cards), "memory_gib": round(float(mebibytes) / 1024, 1), "driver": driver}
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1024**3
    return {"name": f"CPU ({platform.machine()})", "count": len(os.sched_getaffinity(0)), "memory_gib": round(memory, 1), "driver": ""}


def environment() -> dict[str, str]:
    """The variables of this process that SGLang, CUDA, torch and Triton read; of a value that holds a path only the name is kept."""
    return {
        name: "(a path)" if os.sep in value else value
        for name, value in sorted(os.environ.items())
        if name.startswith(PREFIXES) and "KEY" not in name and "TOKEN" not in name
    }


def without_paths(word: str) -> str:
    """A word of a command with each local path cut to its last part: such paths do not belong in a committed run.

    Lists of paths, as in ``PYTHONPATH=...`` of an arm, are left out.
    """
    word = re.sub(r"(?<=PATH=)/[^,]*", "(a path)", word)
    return re.sub(r"(?<![^=:,\s])/[^,:\s]+", lambda found: Path(found[0]).name, word)


def _printed(command: list[str]) -> str:
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    return ""
