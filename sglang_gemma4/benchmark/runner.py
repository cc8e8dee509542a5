"""The A/B runner: processes of the arms in turn, every result on disk at once, a crash of an arm kept as one."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from sglang_gemma4.benchmark import client, gauges, records
from sglang_gemma4.benchmark.arms import Arm
from sglang_gemma4.benchmark.plan import START, WARM_UP, Done, Plan, check_resumable, interleaved, profile_name, step_name
from sglang_gemma4.benchmark.server import Died, Server, tail
from sglang_gemma4.benchmark.workloads import Workload, check_pool, warm_up

Progress = Callable[[str], None]


def run(plan: Plan, header: dict[str, Any], card: dict[str, Any] | None, time_limit: float | None, progress: Progress) -> bool:
    """Do what ``plan`` still lacks; True when nothing is left to do, False when ``time_limit`` (seconds) ended it before.

    Raises:
        ValueError: the folder holds another run, or a workload does not fit a server's pool.
    """
    plan.folder.mkdir(parents=True, exist_ok=True)
    check_resumable(header, Done(records.read(plan.raw)).headers, plan.raw)
    records.append(plan.raw, "header", **header)
    ends = time.monotonic() + time_limit if time_limit else None
    for round_, arm in interleaved(plan):
        with_name = _prefixed(progress, f"round {round_ + 1}/{plan.rounds}, {arm.name}: ")
        for one in (_step_times, _workloads):
            if not one(plan, arm, round_, card, ends, with_name):
                return False
    return True


def _prefixed(progress: Progress, prefix: str) -> Progress:
    return lambda text: progress(prefix + text)


def _time_is_up(ends: float | None, progress: Progress) -> bool:
    up = ends is not None and time.monotonic() > ends
    if up:
        progress("the time limit is reached; the same command goes on from here")
    return up


def _workloads(plan: Plan, arm: Arm, round_: int, card: dict[str, Any] | None, ends: float | None, progress: Progress) -> bool:
    """All server passes of an arm in a round; a server that died is started again for the workloads after the one that killed it."""
    while todo := Done(records.read(plan.raw)).workloads(plan, arm, round_):
        if _time_is_up(ends, progress):
            return False
        environment = {**plan.environment, **arm.environment}
        scratch = plan.folder / "scratch"
        scratch.mkdir(exist_ok=True)
        passes = client.Client(scratch, _client_environment(plan), plan.dataset)
        server = Server(plan.model, [*plan.arguments, *arm.arguments], environment, plan.folder / f"{arm.name}.log", cpu=plan.cpu)
        during = START
        try:
            seconds = server.wait_until_ready(plan.start_limit, progress)
            settings = server.settings()
            who = {"arm": arm.name, "round": round_}
            records.append(plan.raw, "start", **who, process="server", seconds=seconds, settings=settings, patches=server.patches())
            progress(f"server up after {seconds:.0f} s, {settings['max_total_num_tokens']} tokens in its pool")
            passes.wait_until_ready()
            for workload, numbers in todo:
                check_pool(workload, settings)
                during = workload.name
                for number in (WARM_UP, *numbers):
                    _one_pass(plan, arm, round_, workload, number, server, passes, progress)
                    if _time_is_up(ends, progress):
                        return False
        except Died as death:
            _crashed(plan, arm, round_, during, death, progress)
        finally:
            server.stop()
            passes.stop()
    return True


def _one_pass(
    plan: Plan, arm: Arm, round_: int, workload: Workload, number: int, server: Server, passes: client.Client, progress: Progress
) -> None:
    counted = number != WARM_UP
    told = _prefixed(progress, f"{workload.name} {f'{number + 1}/{plan.repetitions}' if counted else 'warm-up'}: ")
    asked, seed = (workload, 1 + number) if counted else (warm_up(workload), 0)
    try:
        with gauges.Watch(server.url, gauges.memory_in_use(server.process.pid)) as watch:
            result = passes.run(asked, server, plan.model, seed, plan.pass_limit, told)
    except OSError:
        time.sleep(2)  # a server that dies closes its port before it has ended
        server.check()
        raise
    server.check()
    row = client.measured(result)
    records.append(
        plan.raw,
        "repetition",
        arm=arm.name,
        round=round_,
        workload=workload.name,
        repetition=number,
        counted=counted,
        **row,
        accept_length=gauges.accept_length(watch.added, row["completed"]),
        retractions=watch.added.get("sglang:num_retracted_requests_total", 0.0),
        prefill_tokens=watch.added.get("sglang:realtime_tokens_total[prefill_compute]"),
        **{name: watch.peaks.get(name) for name in (*gauges.PEAKS, "memory_peak_gib")},
    )
    failed = f", {row['failed']} requests failed: {row['errors'][:1]}" if row["failed"] else ""
    told(f"{row['output_throughput']:.0f} output tokens/s in {row['seconds']:.1f} s{failed}")


def _step_times(plan: Plan, arm: Arm, round_: int, card: dict[str, Any] | None, ends: float | None, progress: Progress) -> bool:
    """The offline engine's step times and profiles of an arm in a round, in one child process; again after a crash, without what broke."""
    while True:
        done = Done(records.read(plan.raw))
        steps, profiled = done.steps(plan, arm, round_), done.profiles(plan, arm, round_)
        if not steps and not profiled:
            return True
        if _time_is_up(ends, progress):
            return False
        todo = [(batch, number) for batch, numbers in steps for number in (WARM_UP, *numbers)]
        order = {
            "raw": str(plan.raw),
            "arm": arm.name,
            "round": round_,
            "model": plan.model,
            "arguments": [*plan.arguments, *arm.arguments],
            "cpu": plan.cpu,
            "input_tokens": plan.step_tokens[0],
            "output_tokens": plan.step_tokens[1],
            "todo": todo,
            "profile": profiled,
            "card": card,
        }
        progress(f"step times: an engine for batches {sorted({batch for batch, _ in todo} | set(profiled))}")
        began = len(records.read(plan.raw))
        status = _run_child(plan, arm, order, ends, progress)
        if status == 0:
            return True
        if _time_is_up(ends, progress):
            return False
        log = plan.folder / f"{arm.name}-engine.log"
        _crashed(plan, arm, round_, _broken(plan, order, records.read(plan.raw)[began:]), Died(status, tail(log)), progress)


def _run_child(plan: Plan, arm: Arm, order: dict[str, Any], ends: float | None, progress: Progress) -> int | None:
    """Exit status of the child, None if it had to be killed."""
    scratch = plan.folder / "scratch"
    scratch.mkdir(exist_ok=True)
    (scratch / "order.json").write_text(json.dumps(order))
    limit = plan.start_limit + plan.pass_limit
    with (plan.folder / f"{arm.name}-engine.log").open("ab") as out:
        child = subprocess.Popen(
            [sys.executable, "-m", "sglang_gemma4.benchmark.step_times", str(scratch / "order.json")],
            env={**os.environ, **plan.environment, **arm.environment},
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    started = time.monotonic()
    told = len(records.read(plan.raw))
    try:
        while child.poll() is None:
            time.sleep(0.5)
            lines = records.read(plan.raw)
            for line in lines[told:]:
                progress(_said(line))
            told = len(lines)
            now = time.monotonic()
            if now - started > limit or (ends is not None and now > ends):
                return None
        return child.returncode
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)  # the engine's own processes too
        child.wait()


def _said(line: records.Record) -> str:
    if line["kind"] == "start":
        return f"engine up after {line['seconds']:.0f} s"
    if line["kind"] == "profile":
        return f"profile of {line['stage']} at batch {line['batch']}: {line['steps']} steps, {len(line['kernels'])} kernels"
    which = f"{line['repetition'] + 1}" if line["counted"] else "warm-up"
    return f"batch {line['batch']} {which}: {line['step_ms']:.2f} ms a step, {line['output_throughput']:.0f} output tokens/s"


def _broken(plan: Plan, order: dict[str, Any], lines: list[records.Record]) -> str:
    """What the child was at when it died, from what it had written."""
    if not any(line["kind"] == "start" for line in lines):
        return START
    finished = [(line["batch"], line["repetition"]) for line in lines if line["kind"] == "step"]
    for batch, number in order["todo"]:
        if (batch, number) not in finished:
            return step_name(batch)
    profiled = {line["batch"] for line in lines if line["kind"] == "profile" and line["stage"] == "decode"}
    return profile_name(next(batch for batch in order["profile"] if batch not in profiled))


def _crashed(plan: Plan, arm: Arm, round_: int, during: str, death: Died, progress: Progress) -> None:
    records.append(plan.raw, "crash", arm=arm.name, round=round_, during=during, exit_status=death.exit_status, log_tail=death.log_tail)
    progress(f"died during {during} ({death}); its last lines:")
    for line in death.log_tail[-8:]:
        progress(f"    {line}")


def _client_environment(plan: Plan) -> dict[str, str]:
    if not plan.cpu:
        return {}
    from sglang_gemma4.cpu.environment import launch_environment

    return launch_environment()
