"""How long servers take until they are ready, by arm and part: ``python -m sglang_gemma4.start.measure FOLDER --model MODEL``.

Arms start one after another on an idle GPU; their order rotates with each repetition. Modes:

- ``cold``: every cache of compiled kernels is an empty folder.
- ``listed``: the same, but what the package keeps for the next start (``SGLANG_GEMMA4_CACHE_DIR``) is from an earlier
  start of the arm. Arms without the package keep nothing and skip this mode.
- ``warm``: all folders are from an earlier start of the arm.

The earlier start is the first cold one; without ``--cold`` one is made before the first repetition and not counted.
FOLDER gets a log for each start, ``starts.json`` with all measurements and the machine's facts, and ``TABLE.md``.
"""

import argparse
import itertools
import json
import signal
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sglang_gemma4.benchmark import arms as arm_texts
from sglang_gemma4.benchmark import machine
from sglang_gemma4.benchmark.arms import Arm
from sglang_gemma4.benchmark.server import Died, Server
from sglang_gemma4.cpu.environment import has_accelerator
from sglang_gemma4.patching import switches

MODES = ("cold", "listed", "warm")
COMPILED = {
    "SGLANG_CACHE_DIR": "sglang",
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "CUDA_CACHE_PATH": "nv",
    "TILELANG_CACHE_DIR": "tilelang",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
    "TVM_FFI_CACHE_DIR": "tvm-ffi",
}
"""Environment variables of caches of compiled kernels, and their folders here."""
STOCK_PARTS = {
    "load_weight": "weights",
    "kv_cache_allocation": "KV pools",
    "cuda_graph": "CUDA graphs",
    "scheduler_e2e": "the scheduler in all",
}
"""Keys of SGLang's ``startup_time``, which every arm has, and their names in the table."""
UP_WITHIN = 1800.0


@dataclass(frozen=True)
class Start:
    """One start to make: an arm, its mode, the folders of its caches; ``counted`` is False if it only fills them."""

    arm: Arm
    mode: str
    repetition: int
    compiled: str
    kept: str
    counted: bool = True

    @property
    def name(self) -> str:
        """The start's name, for files."""
        return f"{self.arm.name}-{self.mode}-{self.repetition}"

    def environment(self, caches: Path) -> dict[str, str]:
        """Variables to add to this process's environment."""
        folders = {name: str(caches / self.compiled / folder) for name, folder in COMPILED.items()}
        return {**folders, switches.CACHE_DIR: str(caches / self.kept), **self.arm.environment}


def plan(arms: Sequence[Arm], modes: Sequence[str], repetitions: int) -> Iterator[Start]:
    """The starts in order: by repetition, then mode, then arm, so that a machine's drift affects all arms alike."""
    own = {arm.name: f"{arm.name}-cold-1" for arm in arms}
    if "cold" not in modes:
        for arm in arms:
            yield Start(arm, "fill", 0, own[arm.name], f"{own[arm.name]}-list", counted=False)
    for repetition in range(1, repetitions + 1):
        turn = (repetition - 1) % len(arms)
        for mode in modes:
            for arm in [*arms[turn:], *arms[:turn]]:
                if mode == "listed" and not keeps(arm):
                    continue
                fresh = f"{arm.name}-{mode}-{repetition}"
                compiled = own[arm.name] if mode == "warm" else fresh
                kept = f"{fresh}-list" if mode == "cold" else f"{own[arm.name]}-list"
                yield Start(arm, mode, repetition, compiled, kept)


def keeps(arm: Arm) -> bool:
    """Whether a start of the arm keeps something for the next one in ``SGLANG_GEMMA4_CACHE_DIR``."""
    environment = arm.effective_environment()
    return any(environment.get(f"SGLANG_GEMMA4_{name}") == "1" for name in ("COMPILE_AHEAD", "FLASH_PREFILL"))


def measure(start: Start, model: str, flags: Sequence[str], folder: Path, caches: Path, cpu: bool) -> dict[str, Any]:
    """Make one start and end the server: seconds until /health answers, start table and SGLang's times, or how it died."""
    environment = start.environment(caches)
    row: dict[str, Any] = {"arm": start.arm.name, "mode": start.mode, "repetition": start.repetition, "counted": start.counted}
    row["switches"] = {name: value for name, value in environment.items() if name in start.arm.environment}
    server = Server(model, [*flags, *start.arm.arguments], environment, folder / f"{start.name}.log", cpu=cpu)
    try:
        row["seconds"] = round(server.wait_until_ready(UP_WITHIN, print), 2)
        state = (server._info().get("internal_states") or [{}])[0]
        deadline = time.monotonic() + 30
        while "sglang_gemma4" in state and not state["sglang_gemma4"].get("start") and time.monotonic() < deadline:
            time.sleep(0.5)  # /health answers a moment before the table is made
            state = server._info()["internal_states"][0]
        row["start"] = state.get("sglang_gemma4", {}).get("start", {})
        row["startup_time"] = state.get("startup_time", {})
    except Died as death:
        row["died"] = [str(death), *death.log_tail[-3:]]
    finally:
        server.stop()
    return row


def parts_of(row: Mapping[str, Any]) -> dict[str, float]:
    """Seconds by part: from the start table, or from SGLang's own times if the arm has no package."""
    if row["start"]:
        return {name: float(seconds) for name, seconds in row["start"]["parts"]}
    told = row["startup_time"]
    return {
        f"SGLang: {said}": float(sum(value.values()) if isinstance(value := told[name], dict) else value)
        for name, said in STOCK_PARTS.items()
        if name in told
    }


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Markdown: seconds until ready by mode and arm with the ratio to the first arm, then medians by part."""
    good = [row for row in rows if row["counted"] and "seconds" in row]
    names = list(dict.fromkeys(row["arm"] for row in rows))
    lines = ["# Seconds until a server is ready", "", "| mode | arm | median | least to most | starts | against the first arm |"]
    lines += ["| --- | --- | --- | --- | --- | --- |"]
    medians: dict[tuple[str, str], float] = {}
    for mode in MODES:
        for name in names:
            seconds = [row["seconds"] for row in good if (row["mode"], row["arm"]) == (mode, name)]
            if not seconds:
                continue
            medians[mode, name] = middle = statistics.median(seconds)
            first = medians.get((mode, names[0]))
            ratio = f"{middle / first:.2f}x" if first else ""
            lines.append(f"| {mode} | {name} | {middle:.1f} | {min(seconds):.1f} to {max(seconds):.1f} | {len(seconds)} | {ratio} |")
    for mode, name in medians:
        found = [parts_of(row) for row in good if (row["mode"], row["arm"]) == (mode, name)]
        lines += ["", f"## {name}, {mode}: medians by part", "", "| part | s |", "| --- | --- |"]
        for part in dict.fromkeys(part for parts in found for part in parts):
            lines.append(f"| {part} | {statistics.median(parts.get(part, 0.0) for parts in found):.1f} |")
    died = [row for row in rows if "died" in row]
    lines += ["", *(f"- {row['arm']}, {row['mode']}, {row['repetition']}: {row['died'][0]}" for row in died)] if died else []
    return "\n".join(lines) + "\n"


def parser() -> argparse.ArgumentParser:
    """Parser of the command line, without what follows ``--``."""
    form = argparse.ArgumentParser(
        prog="python -m sglang_gemma4.start.measure",
        description=str(__doc__),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="What follows -- goes to every server.",
    )
    form.add_argument("folder", type=Path, metavar="FOLDER", help="a new folder")
    form.add_argument("--model", required=True, help="a checkpoint directory, a Hugging Face name or a shipped tiny model")
    form.add_argument("--assistant", help="the MTP draft of the arm part mtp (default: MODEL-assistant)")
    form.add_argument("--arm", action="append", metavar="ARM", help="as `bench --arm`; default: stock,mtp and package,mtp")
    for mode in MODES:
        form.add_argument(f"--{mode}", action="store_true", help=f"{mode} starts (default: cold and warm)")
    form.add_argument("--repetitions", type=int, default=3, metavar="N", help="starts of each arm and mode (default: %(default)s)")
    form.add_argument("--dry-run", action="store_true", help="print the starts and their environments, and make none")
    return form


def main(argv: Sequence[str] | None = None) -> int:
    """Measure; return 1 if a start died, 2 for bad arguments."""
    words = list(sys.argv[1:] if argv is None else argv)
    words, flags = (words[: words.index("--")], words[words.index("--") + 1 :]) if "--" in words else (words, [])
    form = parser()
    given = form.parse_args(words)
    dummy = "--load-format=dummy" in flags or ("--load-format", "dummy") in itertools.pairwise(flags)
    texts = given.arm or ["stock:stock,mtp", "package:package,mtp"]
    try:
        arms = [arm_texts.parse(text, assistant=given.assistant or f"{given.model}-assistant", dummy_weights=dummy) for text in texts]
        arm_texts.check(arms)
        if given.repetitions < 1:
            raise ValueError(f"--repetitions {given.repetitions}: give at least 1")
        if given.folder.exists() and any(given.folder.iterdir()):
            raise ValueError(f"{given.folder} is not empty; name a new folder")
    except ValueError as error:
        form.error(str(error))
    modes = [mode for mode in MODES if getattr(given, mode)] or ["cold", "warm"]
    caches = given.folder.resolve() / "caches"
    starts = list(plan(arms, modes, given.repetitions))
    if given.dry_run:
        for start in starts:
            print(start.name, "" if start.counted else "(not counted)", json.dumps(start.environment(caches)), *start.arm.arguments, *flags)
        return 0
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, signal.default_int_handler)  # a server is a session of its own and would outlive this process
    given.folder.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    told = {**machine.facts(sys.argv), "model": given.model, "flags": flags, "starts": rows}
    for number, start in enumerate(starts, 1):
        row = measure(start, given.model, flags, given.folder, caches, cpu=not has_accelerator())
        rows.append(row)
        print(f"{number}/{len(starts)} {start.name}: {row.get('seconds', row.get('died'))}", flush=True)
        (given.folder / "starts.json").write_text(json.dumps(told, indent=1) + "\n")
        (given.folder / "TABLE.md").write_text(table(rows))
    print(table(rows))
    return int(any("died" in row for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
