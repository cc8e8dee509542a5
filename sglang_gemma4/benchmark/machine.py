"""Versions, card and environment of a run. A probe that fails is left out; nothing here imports SGLang."""

import contextlib
import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from sglang_gemma4 import __version__

DISTRIBUTIONS = ("sglang", "sglang-kernel", "torch", "triton", "transformers", "flashinfer-python")
PREFIXES = ("SGLANG_", "CUDA_", "TORCH_", "TRITON_", "NCCL_", "OMP_")


def versions() -> dict[str, str]:
    """Of the package (with the commit of its checkout, if any), of Python, and of what the package runs on."""
    found = {"sglang-gemma4": __version__, "python": platform.python_version()}
    if commit := _printed(["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=12"]):
        found["commit"] = commit
    for name in DISTRIBUTIONS:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def device() -> dict[str, Any]:
    """The cards, or the processor where there are none: ``name``, ``count``, ``memory_gib`` of one, ``driver``."""
    if listed := _printed(["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits"]):
        cards = listed.splitlines()
        name, mebibytes, driver = cards[0].split(", ")
        return {"name": name, "count": len(cards), "memory_gib": round(float(mebibytes) / 1024, 1), "driver": driver}
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1024**3
    return {"name": f"CPU ({platform.machine()})", "count": len(os.sched_getaffinity(0)), "memory_gib": round(memory, 1), "driver": ""}


def environment() -> dict[str, str]:
    """The variables of this process that SGLang, CUDA, torch and Triton read; values that hold a path are named only."""
    return {
        name: "(a path)" if os.sep in value else value
        for name, value in sorted(os.environ.items())
        if name.startswith(PREFIXES) and "KEY" not in name and "TOKEN" not in name
    }


def _printed(command: list[str]) -> str:
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    return ""
