"""The A/B runner: processes of the arms in turn, every result on disk at once, a crash of an arm kept as one."""

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any

from sglang_gemma4.benchmark import client, gauges, records
from sglang_gemma4.benchmark.arms import Arm
from sglang_gemma4.benchmark.plan import (
    START_ENGINE,
    START_SERVER,
    WARM_UP,
    Done,
    Plan,
    check_resumable,
    interleaved,
    profile_name,
    step_name,
)
from sglang_gemma4.benchmark.server import Died, Server
from sglang_gemma4.benchmark.shared_card import environment, held
from sglang_gemma4.benchmark.step_engine import StepEngine, Task, TimeIsUp
from sglang_gemma4.benchmark.workloads import Workload, check_pool, warm_up

Progress = Callable[[str], None]
Todo = dict[Workload, list[int]]  # the repetition numbers that an arm still has to run


def run(plan: Plan, header: dict[str, Any], card: dict[str, Any] | None, time_limit: float | None, progress: Progress) -> bool:
    """Do what ``plan`` still lacks; True when nothing is left to do, False when ``time_limit`` (seconds) ended it before.

    Raises:
        ValueError: the folder holds another run, or a workload does not fit a server's pool.
    """
    plan.folder.mkdir(parents=True, exist_ok=True)
    check_resumable(header, Done(records.read(plan.raw)).headers, plan.raw)
    records.append(plan.raw, "header", **header)
    ends = time.monotonic() + time_limit if time_limit else None
    for round_, arms in interleaved(plan):
        if not _step_times(plan, arms, round_, card, ends, progress):
            return False
        if not _workloads(plan, arms, round_, ends, progress):
            return False
    return True


def _named(progress: Progress, plan: Plan, round_: int, arm: Arm) -> Progress:
    return _prefixed(progress, f"round {round_ + 1}/{plan.rounds}, {arm.name}: ")


def _prefixed(progress: Progress, prefix: str) -> Progress:
    return lambda text: progress(prefix + text)


def _time_is_up(plan: Plan, ends: float | None, progress: Progress) -> bool:
    up = ends is not None and time.monotonic() > ends
    if up:
        progress(f"the time limit is reached; the same command with --out {plan.folder} goes on from here")
    return up


def _workloads(plan: Plan, arms: Sequence[Arm], round_: int, ends: float | None, progress: Progress) -> bool:
    """All server passes of these arms in a round: their servers start side by side, then the passes take turns (A B A B).

    Where a server died, all are started again for the workloads after the one that killed it.
    """
    while todo := _left(plan, arms, round_):
        if _time_is_up(plan, ends, progress):
            return False
        scratch = plan.folder / "scratch"
        scratch.mkdir(exist_ok=True)
        with contextlib.ExitStack() as running:
            passes = client.Client(scratch, _client_environment(plan), plan.dataset)
            running.callback(passes.stop)
            servers = []
            shared = running.enter_context(environment(plan))
            for arm, _ in todo:
                own = {**shared, **arm.environment}
                servers.append(Server(plan.model, [*plan.arguments, *arm.arguments], own, plan.log(arm), cpu=plan.cpu))
                running.callback(servers[-1].stop)
            try:
                if not _passes_in_turn(plan, todo, servers, passes, round_, ends, progress):
                    return False
            except TimeIsUp:
                _time_is_up(plan, ends, progress)
                return False
    return True


def _left(plan: Plan, arms: Sequence[Arm], round_: int) -> list[tuple[Arm, Todo]]:
    done = Done(records.read(plan.raw))
    return [(arm, left) for arm in arms if (left := dict(done.workloads(plan, arm, round_)))]


def _passes_in_turn(
    plan: Plan,
    todo: list[tuple[Arm, Todo]],
    servers: list[Server],
    passes: client.Client,
    round_: int,
    ends: float | None,
    progress: Progress,
) -> bool:
    """The passes of servers that were just started; ends early where a server dies (True), or the time is up (False)."""
    during, arm = START_SERVER, todo[0][0]
    sides = []
    passes.wait_until_ready()  # long before the servers; where it cannot start they have not to be waited for
    numbers = (WARM_UP, *plan.numbers(round_))
    needed = [workload for workload in plan.workloads if any(workload in left for _, left in todo)]
    passes.prepare([_asked(workload, number) for workload in needed for number in numbers], plan.model)
    try:
        for (arm, left), server in zip(todo, servers, strict=True):
            told = _named(progress, plan, round_, arm)
            settings = _up(plan, arm, round_, server, told)
            sides.append((arm, _fitting(plan, arm, round_, left, settings, told), server, told))
        for workload in plan.workloads:
            during = workload.name
            for number in numbers:
                for arm, left, server, told in sides:
                    if workload in left and number in (WARM_UP, *left[workload]):
                        with held(plan.card_lock, ends, told):
                            _one_pass(plan, arm, round_, workload, number, server, passes, told)
                    if _time_is_up(plan, ends, progress):
                        return False
    except Died as death:
        _crashed(plan, arm, round_, during, death, _named(progress, plan, round_, arm))
    return True


def _up(plan: Plan, arm: Arm, round_: int, server: Server, progress: Progress) -> dict[str, Any]:
    """What the server decided for itself, once it is ready; kept as a record."""
    seconds = server.wait_until_ready(plan.start_limit, progress)
    settings = server.settings()
    who = {"arm": arm.name, "round": round_}
    records.append(plan.raw, "start", **who, process="server", seconds=seconds, settings=settings, patches=server.patches())
    progress(f"server up after {seconds:.0f} s, {settings['max_total_num_tokens']} tokens in its pool")
    return settings


def _fitting(plan: Plan, arm: Arm, round_: int, todo: Todo, settings: dict[str, Any], progress: Progress) -> Todo:
    """The workloads that this server's pool can hold; of the others it is kept why they were not run."""
    fitting = {}
    for workload, numbers in todo.items():
        try:
            check_pool(workload, settings)
            fitting[workload] = numbers
        except ValueError as error:
            records.append(
                plan.raw, "crash", arm=arm.name, round=round_, during=workload.name, exit_status=None, log_tail=[], why=str(error)
            )
            progress(str(error))
    return fitting


def _asked(workload: Workload, number: int) -> tuple[Workload, int]:
    """What a pass asks for, and its seed."""
    return (warm_up(workload), 0) if number == WARM_UP else (workload, 1 + number)


def _one_pass(
    plan: Plan, arm: Arm, round_: int, workload: Workload, number: int, server: Server, passes: client.Client, progress: Progress
) -> None:
    counted = number != WARM_UP
    told = _prefixed(progress, f"{workload.name} {f'{number + 1}/{plan.repetitions}' if counted else 'warm-up'}: ")
    asked, seed = _asked(workload, number)
    try:
        with gauges.Watch(server.url, gauges.memory_in_use(server.process.pid)) as watch:
            result = passes.run(asked, server, plan.model, seed, plan.pass_limit, told)
    except OSError:
        time.sleep(client.GRACE)
        server.check()
        raise
    server.check()
    row = client.measured(result)
    row |= _generated(row, watch.added.get("sglang:generation_tokens_total"))
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


def _generated(row: dict[str, Any], tokens: float | None) -> dict[str, Any]:
    """What to correct where the client believes more than the server did.

    SGLang answers a request that it refuses in mid-stream with status 200 and an error chunk; its client then counts every token that
    was asked for. The server's own counter knows better.
    """
    if tokens is None or tokens >= 0.99 * row["output_tokens"]:
        return {}
    missing = int(row["output_tokens"] - tokens)
    return {"output_tokens": int(tokens), "output_throughput": tokens / row["seconds"], "missing_tokens": missing}


def _step_times(plan: Plan, arms: Sequence[Arm], round_: int, card: dict[str, Any] | None, ends: float | None, progress: Progress) -> bool:
    """The offline engines' step times and profiles of these arms in a round: they start side by side, then take turns (A B A B).

    Where an engine died, all are started again without what broke it.
    """
    while todo := _tasks(plan, arms, round_):
        if _time_is_up(plan, ends, progress):
            return False
        with contextlib.ExitStack() as running:
            engines = []
            shared = running.enter_context(environment(plan))
            for arm, tasks in todo:
                _named(progress, plan, round_, arm)(f"step times: an engine for batches {sorted({batch for _, batch, _ in tasks})}")
                engines.append(StepEngine(plan, arm, shared, round_, tasks, card))
                running.callback(engines[-1].stop)
            try:
                died = _steps_in_turn(plan, engines, round_, ends, progress)
            except TimeIsUp:
                _time_is_up(plan, ends, progress)
                return False
            if not died:
                for engine in engines:
                    engine.dismiss()
                for engine in engines:
                    if not engine.ended():
                        _named(progress, plan, round_, engine.arm)("the engine gave every result and did not end by itself")
                return True
    return True


def _tasks(plan: Plan, arms: Sequence[Arm], round_: int) -> list[tuple[Arm, list[Task]]]:
    """Of each arm that has any, what its engine still has to do in this round."""
    done = Done(records.read(plan.raw))
    found = []
    for arm in arms:
        tasks: list[Task] = [("step", batch, number) for batch, left in done.steps(plan, arm, round_) for number in (WARM_UP, *left)]
        tasks += [("profile", batch, 0) for batch in done.profiles(plan, arm, round_)]
        if tasks:
            found.append((arm, tasks))
    return found


def _steps_in_turn(plan: Plan, engines: list[StepEngine], round_: int, ends: float | None, progress: Progress) -> bool:
    """Every task of engines that were just started; ends early where one dies (True)."""
    during, engine = START_ENGINE, engines[0]
    try:
        for engine in engines:
            engine.wait_until_up(ends, _named(progress, plan, round_, engine.arm))
        for task in dict.fromkeys(task for engine in engines for task in engine.tasks):
            during = (step_name if task[0] == "step" else profile_name)(task[1])
            for engine in engines:
                if task in engine.tasks:
                    told = _named(progress, plan, round_, engine.arm)
                    with held(plan.card_lock, ends, told):
                        engine.do(task, ends, told)
    except Died as death:
        _crashed(plan, engine.arm, round_, during, death, _named(progress, plan, round_, engine.arm))
        return True
    return False


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
