"""What a card has to show: a table of stages (``stage_table.py``), run in the order of their worth.

    python tests/gpu/measure.py FOLDER [STAGE ...] [--seconds LIMIT] [--passes N]
    python tests/gpu/measure.py --list

STAGE names a stage, a group, or a module that has stages of one subject (``quant_stages``); without one those of ``stages.py``
run. FOLDER gets a log for each command and a folder for each bench (raw lines; ``sglang-gemma4 bench --report`` makes the report, also
elsewhere). A stage that would not end within LIMIT is left out and named; the same command goes on with what is not in FOLDER/done.
Bench stages print how each arm compares with the first. ``--dry-run`` runs the stages' dry runs instead, which shows without a card that
every command works.
"""

import argparse
import contextlib
import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.gpu import curve_stages, session_stages  # noqa: E402 - the repository's root is known now
from tests.gpu.stage_table import ALL, GROUPS, TABLE, named  # noqa: E402
from tests.gpu.stages import Command, Stage  # noqa: E402

DRY_FACTOR = 20
"""An engine without a card is slow."""


class Run:
    """One invocation: its results' folder, its time limit, what is done and what was left out."""

    def __init__(self, folder: Path, limit: float, dry: bool, passes: int | None = None) -> None:
        self.folder, self.limit, self.dry, self.began = folder.resolve(), limit, dry, time.monotonic()
        self.passes = passes
        self.folder.mkdir(parents=True, exist_ok=True)
        self.done_file = self.folder / ("done-dry" if dry else "done")
        self.done = set(self.done_file.read_text().split()) if self.done_file.exists() else set[str]()
        self.left_out: list[str] = []
        self.failed: list[str] = []
        self.lock = self.folder / "card.lock"
        self.running: list[subprocess.Popen[bytes]] = []

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.began

    def seconds(self, stage: Stage) -> int:
        """What a stage gets."""
        return stage.seconds * (DRY_FACTOR if self.dry else 1)

    def results(self, stage: Stage) -> Path:
        """Where a bench of a stage writes its raw lines."""
        return self.folder / ("dry" if self.dry else "") / stage.name

    def commands(self, stage: Stage) -> list[Command]:
        """With this run's folder, lock and interpreter filled in."""
        given = {"{python}": sys.executable, "{out}": str(self.folder / "dry" if self.dry else self.folder), "{lock}": str(self.lock)}
        filled = []
        for command in stage.dry if self.dry else stage.commands:
            for mark, value in given.items():
                command = tuple(word.replace(mark, value) for word in command)
            if self.passes is not None and "--repetitions" in command:
                asked = command.index("--repetitions") + 1
                command = (*command[:asked], str(self.passes), *command[asked + 1 :])
            filled.append(command)
        return filled

    def all(self, stages: Sequence[Stage]) -> int:
        """Run what is not done; the exit status: 1 where a stage failed, 3 where one was left out. Whatever ends it ends its commands.

        On the main thread: a SIGTERM too, which would else leave a bench and its engines running.
        """
        before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        try:
            return self._all(stages)
        finally:
            for process in self.running:
                _end(process)  # first so that it can end what it started in sessions of their own, as a bench does
            signal.signal(signal.SIGTERM, before)

    def _all(self, stages: Sequence[Stage]) -> int:
        beside: list[threading.Thread] = []
        for stage in stages:
            if stage.name in self.done or not self.commands(stage):
                continue
            if stage.waits:
                _join(beside)
            if self.elapsed + self.seconds(stage) > self.limit:
                self.left_out.append(stage.name)
                print(f"left out: {stage.name} ({self.seconds(stage)} s needed, {self.limit - self.elapsed:.0f} s left)", flush=True)
                continue
            if stage.beside:
                beside.append(threading.Thread(target=self.one, args=(stage,), daemon=True))
                beside[-1].start()
            else:
                self.one(stage)
        _join(beside)
        if self.left_out:
            print(f"left out: {' '.join(self.left_out)}")
        if self.failed:
            print(f"failed: {' '.join(self.failed)}")
        return 1 if self.failed else 3 if self.left_out else 0

    def one(self, stage: Stage) -> None:
        """Run a stage's commands side by side; note it as done where all succeed."""
        began = time.monotonic()
        with self.lock.open("a") as held:
            if stage.locked and not self.dry:
                fcntl.flock(held, fcntl.LOCK_SH if stage.beside else fcntl.LOCK_EX)
            deadline = time.monotonic() + self.seconds(stage)
            processes, logs = [], []
            for number, command in enumerate(self.commands(stage)):
                logs.append(self.folder / f"{stage.name}{f'-{number + 1}' if number else ''}.log")
                with logs[-1].open("w") as out:
                    processes.append(subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT, start_new_session=True))
            self.running += processes
            statuses = [_ended(process, deadline) for process in processes]
            self.running = [process for process in self.running if process not in processes]
        well = not any(statuses)
        print(f"{stage.name}: status {', '.join(map(str, statuses))} after {time.monotonic() - began:.0f} s", flush=True)
        for log in logs:
            if last := log.read_text(errors="replace").strip().splitlines()[-1:]:
                print(f"    {last[0][:200]}", flush=True)
        if well:
            with self.done_file.open("a") as file:
                file.write(f"{stage.name}\n")
            if not stage.locked:
                folder = self.results(stage)
                lines = verdicts(folder)
                if stage.says and not self.dry and not any(re.search(stage.says, log.read_text()) for log in folder.glob("package*.log")):
                    lines.append(f"no log of the arm package says {stage.says!r}: this is not the comparison that was meant")
                print("\n".join(f"    {line}" for line in lines), flush=True)
        else:
            self.failed.append(stage.name)


def _join(threads: list[threading.Thread]) -> None:
    while threads:
        threads.pop().join()


def _ended(process: "subprocess.Popen[bytes]", deadline: float) -> int:
    """Its status; 124 where the time was over, with all that it started."""
    try:
        return process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        _end(process)
        return 124


def _end(process: "subprocess.Popen[bytes]") -> None:
    """A command with all that it started: asked, then killed."""
    for sign, patience in ((signal.SIGTERM, 60), (signal.SIGKILL, 60)):
        _kill(process, sign)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience)
            return


def _kill(process: "subprocess.Popen[bytes]", sign: int) -> None:
    """All that a command started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, sign)


def verdicts(folder: Path) -> list[str]:
    """How each arm of a bench compares with the first, by output tokens/s: faster, slower, no difference, or not enough passes to tell."""
    from sglang_gemma4.benchmark import headline, results

    found = results.load(folder)
    lines = []
    for arm in found.arms[1:]:
        outcomes = headline.outcomes(found, arm)
        if not outcomes and found.curves:
            continue  # curves are compared by their cliffs
        told = [one for one in outcomes if one.ratio.separated]
        ratios = ", ".join(f"{one.place} {one.ratio.value:.3f}{'' if one.ratio.separated else '?'}" for one in outcomes)
        faster, slower = (any(sign * (one.ratio.value - 1) > 0.005 for one in told) for sign in (1, -1))
        verdict = "mixed" if faster and slower else "faster" if faster else "slower" if slower else "no difference that can be told"
        lines.append(f"{arm} against {found.arms[0]}: {verdict} ({ratios})")
    return lines


def report(stage: Stage, folder: Path) -> str:
    """What a bench of batch sizes or of sessions has to show beside its verdicts; empty for other stages, or without results."""
    from sglang_gemma4.benchmark import curve_report, results, session_report

    if not (folder / "raw.jsonl").exists() or stage not in (*curve_stages.STAGES, *session_stages.STAGES):
        return ""
    found = results.load(folder)
    if stage in curve_stages.STAGES:
        return f"\n{stage.name}\n\n{curve_report.text(found)}" if found.curves else ""
    compared = "\n".join(f"- {sentence}" for sentence in session_report.identity(found))
    return f"\n{stage.name}\n\n{session_report.rows(found)}\n\n{compared}"


def listing(folder: Path | None) -> str:
    """The table of stages by subject, with those that ``folder`` has done marked, and the sums."""
    done = set((folder / "done").read_text().split()) if folder and (folder / "done").exists() else set[str]()
    lines = []
    for subject, members in TABLE.items():
        lines.append(f"\n{subject} ({sum(stage.seconds for stage in members)} s)")
        for stage in members:
            how = "beside" if stage.beside else "alone" if stage.locked else "passes alone"
            lines.append(f"{stage.name:<24} {stage.seconds:>4} s  {how:<12} {'done ' if stage.name in done else ''}{stage.decides}")
    after = sum(stage.seconds for stage in ALL if not stage.beside)
    beside = sum(stage.seconds for stage in ALL if stage.beside)
    lines.append(f"\n{len(ALL)} stages: {after} s one after the other, {beside} s beside those")
    groups = {name: members for name, members in GROUPS.items() if name not in TABLE}
    lines += [f"{name} ({sum(stage.seconds for stage in named([name]))} s): {' '.join(members)}" for name, members in groups.items()]
    return "\n".join(lines).lstrip()


def main(words: Sequence[str] | None = None) -> int:
    """Exit status: 0 all done, 1 a stage failed, 2 no card or a wrong argument, 3 the time did not suffice."""
    form = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    form.add_argument("folder", nargs="?", type=Path, metavar="FOLDER")
    form.add_argument("stages", nargs="*", metavar="STAGE", help=f"of --list, or {', '.join(GROUPS)}; default: stages")
    form.add_argument("--seconds", type=float, default=float("inf"), metavar="LIMIT", help="no stage begins that would end later")
    form.add_argument("--passes", type=int, metavar="N", help="of each workload and arm, in place of a stage's own number")
    form.add_argument("--list", action="store_true", help="the stages, what each needs and decides")
    form.add_argument("--dry-run", action="store_true", help="the stages' dry runs, without a GPU")
    asked = form.parse_args(words)
    if asked.list:
        print(listing(asked.folder))
        return 0
    if asked.folder is None:
        form.error("name a FOLDER for the results, or give --list")
    try:
        stages = named(asked.stages)
    except ValueError as error:
        form.error(str(error))
    if not asked.dry_run and not has_card():
        form.error("the stages need a GPU; --dry-run tries their commands without one")
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, signal.default_int_handler)
    run = Run(asked.folder, asked.seconds, asked.dry_run, asked.passes)
    status = run.all(stages)
    for stage in stages:
        if text := report(stage, run.results(stage)):
            print(text)
    return status


def has_card() -> bool:
    """Whether the driver lists one."""
    tool = shutil.which("nvidia-smi")
    return bool(tool) and "GPU" in subprocess.run([str(tool), "-L"], capture_output=True, text=True).stdout


if __name__ == "__main__":
    sys.exit(main())
