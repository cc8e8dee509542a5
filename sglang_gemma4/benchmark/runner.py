"""The A/B runner: the arms' processes take turns, every result is written at once, and an arm's crash is a result too."""

import contextlib
import time
from collections.abc import Callable
from typing import Any

from sglang_gemma4.benchmark import client, records
from sglang_gemma4.benchmark.arms import Arm
from sglang_gemma4.benchmark.plan import ENGINE, SERVER, Done, Plan, Task, check_resumable, during, interleaved, start_name
from sglang_gemma4.benchmark.server import Died
from sglang_gemma4.benchmark.server_side import ServerSide, asked_of
from sglang_gemma4.benchmark.step_engine import StepEngine, TimeIsUp, environment, held

Progress = Callable[[str], None]


def run(plan: Plan, header: dict[str, Any], card: dict[str, Any] | None, time_limit: float | None, progress: Progress) -> bool:
    """Measure what ``plan`` still lacks; returns False if ``time_limit`` (seconds) ended it before everything was measured.

    Raises:
        ValueError: the folder holds another run, or SGLang's benchmark client does not work here.
    """
    (plan.folder / "scratch").mkdir(parents=True, exist_ok=True)
    check_resumable(header, Done(records.read(plan.raw)).headers, plan.raw)
    records.append(plan.raw, "header", **header)
    ends = time.monotonic() + time_limit if time_limit else None
    try:
        for round_, arms in interleaved(plan):
            for process in (ENGINE, SERVER):
                while todo := [(arm, tasks) for arm in arms if (tasks := Done(records.read(plan.raw)).left(plan, arm, round_, process))]:
                    _check_time(ends)
                    _measure(plan, process, todo, round_, card, ends, progress)
    except TimeIsUp:
        progress(f"the time limit is reached; the same command with --out {plan.folder} resumes the run")
        return False
    return True


def _check_time(ends: float | None) -> None:
    if ends is not None and time.monotonic() > ends:
        raise TimeIsUp


def _measure(
    plan: Plan,
    process: str,
    todo: list[tuple[Arm, list[Task]]],
    round_: int,
    card: dict[str, Any] | None,
    ends: float | None,
    progress: Progress,
) -> None:
    """Start engines or servers of these arms in parallel, then alternate between their tasks (A B A B).

    If one dies, all are stopped and the task during which it died is recorded, so that it is not tried again.
    """

    def told(arm: Arm) -> Progress:
        return lambda text: progress(f"round {round_ + 1}/{plan.rounds}, {arm.name}: {text}")

    with contextlib.ExitStack() as running:
        shared = running.enter_context(environment(plan))
        sides: list[StepEngine | ServerSide] = []
        passes = None
        if process == SERVER:
            passes = client.Client(plan.folder / "scratch", _client_environment(plan), plan.model, plan.dataset, plan.token_ids)
        for arm, tasks in todo:
            if passes:
                sides.append(ServerSide(plan, arm, shared, round_, tasks, passes))
            else:
                told(arm)(f"step times: an engine for batches {sorted({batch for _, batch, _ in tasks})}")
                sides.append(StepEngine(plan, arm, shared, round_, tasks, card))
            running.callback(sides[-1].stop)
        order = dict.fromkeys(task for task in plan.order(process, round_) if any(task in side.tasks for side in sides))
        if passes:  # ready long before the servers; if it cannot work, the servers need not be waited for
            passes.prepare(list(dict.fromkeys(asked_of(plan, task) for task in order)))
        doing, side = start_name(process), sides[0]
        try:
            for side in sides:
                side.wait_until_up(ends, told(side.arm))
            for task in order:
                doing = during(task)
                for side in sides:
                    if task in side.tasks:
                        _check_time(ends)
                        with held(plan.card_lock, ends, told(side.arm)):
                            side.do(task, ends, told(side.arm))
        except Died as death:
            crash = {"during": doing, "exit_status": death.exit_status, "log_tail": death.log_tail}
            records.append(plan.raw, "crash", arm=side.arm.name, round=round_, **crash)
            told(side.arm)("\n    ".join([f"died during {doing} ({death}); its last lines:", *death.log_tail[-8:]]))
            return
        engines = [side for side in sides if isinstance(side, StepEngine)]  # servers do not end by themselves
        for engine in engines:  # dismiss all before waiting for any: they may have mapped each other's weights
            engine.dismiss()
        for engine in engines:
            engine.finish(told(engine.arm))


def _client_environment(plan: Plan) -> dict[str, str]:
    if not plan.cpu:
        return {}
    from sglang_gemma4.cpu.environment import launch_environment

    return launch_environment()
