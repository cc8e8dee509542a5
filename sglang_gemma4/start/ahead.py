"""Compile the Triton kernels of an earlier start of the same server, in separate processes while weights load.

A start that finds Triton's disk cache compiles nothing and starts no process. Otherwise (a first start, another
version, a new container) kernels are compiled one after another while graphs are captured. In a first start of
26B-A4B with MTP that takes 56 s, with a list 10 s (``runs/2026-11-24-26b-start``). A first start has no list of its
own and takes the package's, if there is one for the model (``shipped``). ``python -m sglang_gemma4.start.ahead FILE``
compiles a list by hand.
"""

import argparse
import json
import logging
import os
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from sglang_gemma4.start import folder, manifest, shipped
from sglang_gemma4.start.child import Child

logger = logging.getLogger(__name__)
KIND = "kernels"
LONGEST_WAIT = 60.0
"""Seconds that a capture waits for the compiling processes; then it continues and compiles what is missing."""
PAUSE, TIMES = 60.0, 10


class Ahead:
    """The compiling processes of one start, and the list for the next one.

    Args:
        card: the GPU's name.
        key: what decides which kernels a server compiles, apart from the versions: see :func:`key_of`.
        shipped: the package's own list for the model, used if no earlier start left one.
    """

    def __init__(self, card: str, key: Mapping[str, Any], shipped: Path | None = None) -> None:
        self.card, self.key, self.shipped = card, key, shipped
        known = folder.load(KIND, card, key)
        self.known: dict[str, Any] = known if isinstance(known, dict) else {}
        self.child: Child | None = None

    def begin(self) -> int:
        """Start compiling what Triton's cache lacks; return how many kernels that may be.

        Raises:
            KeyError, TypeError, OSError, ValueError: the list is malformed, or no process can be started.
        """
        path = folder.place(KIND, self.card, self.key)
        if path is None:  # nothing is kept, so each start would compile the package's list again
            return 0
        entries = self.known.get("entries", [])
        same = self.known.get("versions") == folder.versions()
        missing = [entry for entry in entries if not (same and manifest.is_compiled(entry))]
        if not self.known and self.shipped is not None:
            path, missing = self.shipped, shipped.read(self.shipped)["entries"]
        if missing:
            self.child = Child("sglang_gemma4.start.ahead", str(path))
        return len(missing)

    def wait(self, seconds: float = LONGEST_WAIT) -> str | None:
        """Wait until all is compiled, ``seconds`` at most; return a log line, or None if nothing was started."""
        if self.child is None:
            return None
        began, said = time.monotonic(), self.child.answer(seconds)
        self.child = None
        if isinstance(said, str):
            return f"kernels compiled ahead: {said}; the start goes on"
        failed = "".join(f"; not {name} ({reason})" for name, reason in said["failed"][:3])
        return (
            f"{said['compiled']} kernels were compiled ahead in {said['seconds']:.1f} s by {said['workers']} processes beside the weights, "
            f"{said['found']} were on disk, {len(said['failed'])} failed; waited {time.monotonic() - began:.1f} s{failed}"
        )

    def keep(self) -> None:
        """Keep the list of what this start compiled or found, for the next one."""
        entries = sorted(manifest.recorded(), key=lambda entry: str(entry["hash"]))
        value = {"versions": folder.versions(), "entries": entries}
        if entries and value != self.known:
            folder.save(KIND, self.card, self.key, value)

    def keep_on(self, pause: float = PAUSE, times: int = TIMES) -> None:
        """Also keep what the first requests make Triton compile: check ``times`` times, ``pause`` seconds apart.

        On an H100 a server's first request, SGLang's own with an image, compiled four unlisted kernels in 17 s.
        """
        kept = manifest.count()
        for _ in range(times):
            time.sleep(pause)
            if manifest.count() > kept:
                self.keep()
                kept = manifest.count()


def key_of(architecture: str, config: Mapping[str, Any], flags: Mapping[str, Any]) -> dict[str, Any]:
    """What decides which kernels a server compiles: its model's class and config, and flags."""
    return {"architecture": architecture, "config": folder.digest(json.loads(json.dumps(config, default=str))), "flags": dict(flags)}


def compile_all(entries: Sequence[manifest.Entry], workers: int) -> dict[str, Any]:
    """Compile entries into Triton's cache: the package's kernels first, whose modules import within a second.

    Returns:
        ``compiled``, ``found`` on disk and ``failed`` (pairs of kernel and reason), ``seconds`` and ``workers``.
    """
    began = time.monotonic()
    done: dict[str, Any] = {"compiled": 0, "found": 0, "failed": [], "workers": workers}
    ours = [entry for entry in entries if entry["kernel"].startswith("sglang_gemma4.")]
    theirs = [entry for entry in entries if not entry["kernel"].startswith("sglang_gemma4.")]
    pools = []
    for part in (ours, theirs):
        for module in sorted({entry["kernel"].partition(":")[0] for entry in part}):
            try:
                import_module(module)
            except Exception as error:
                logger.info("%s does not import: %s", module, error)  # each of its kernels reports it
        pool = ProcessPoolExecutor(workers, mp_context=get_context("fork"))  # after the imports, which the workers inherit
        pools.append((pool, [(entry["kernel"], pool.submit(_compiled, entry)) for entry in part]))
    for pool, futures in pools:
        for name, future in futures:
            try:
                done["compiled" if future.result() else "found"] += 1
            except Exception as error:
                done["failed"].append((name, f"{type(error).__name__}: {error}"[:200]))
        pool.shutdown()
    return {**done, "seconds": round(time.monotonic() - began, 1)}


def _compiled(entry: manifest.Entry) -> bool:
    return manifest.compile_entry(entry)


def main(argv: Sequence[str] | None = None) -> int:
    """Compile a kept list; one line of JSON on standard output."""
    parser = argparse.ArgumentParser(prog="python -m sglang_gemma4.start.ahead", description=str(__doc__).partition("\n")[0])
    parser.add_argument(
        "file",
        type=Path,
        metavar="FILE",
        help="a kernels-*.json from the folder that SGLANG_GEMMA4_CACHE_DIR names, or a .json.gz of start/lists",
    )
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    parser.add_argument("--workers", type=int, default=max(1, min(16, cores - 2)), help="compiling processes (default: %(default)s)")
    arguments = parser.parse_args(argv)
    os.nice(5)  # loading weights comes first
    if "TRITON_CACHE_DIR" not in os.environ:
        import_module("sglang")  # it names the folder that servers use
    packed = arguments.file.suffix == ".gz"
    entries = shipped.read(arguments.file)["entries"] if packed else json.loads(arguments.file.read_text())["value"]["entries"]
    out, sys.stdout = sys.stdout, sys.stderr  # modules of SGLang print while they are imported
    print(json.dumps(compile_all(entries, arguments.workers)), file=out)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
