"""An arm's server and its passes; the counterpart of ``step_engine.StepEngine``."""

import time
from collections.abc import Callable, Mapping
from typing import Any

from sglang_gemma4.benchmark import client, gauges, records, vllm_server
from sglang_gemma4.benchmark.arms import Arm
from sglang_gemma4.benchmark.plan import WARM_UP, Plan, Task
from sglang_gemma4.benchmark.server import Server
from sglang_gemma4.benchmark.workloads import Workload, check_pool, warm_up

Progress = Callable[[str], None]


class ServerSide:
    """A server of an arm; its tasks are passes of SGLang's benchmark client, which all servers share."""

    def __init__(self, plan: Plan, arm: Arm, environment: Mapping[str, str], round_: int, tasks: list[Task], passes: client.Client) -> None:
        self.plan, self.arm, self.tasks, self.passes = plan, arm, tasks, passes
        self._who = {"arm": arm.name, "round": round_}
        own = {**environment, **arm.environment}
        if arm.vllm:
            self.server: Server = vllm_server.start(plan, arm, own)
        else:
            self.server = Server(plan.model, [*plan.arguments, *arm.arguments], own, plan.log(arm), cpu=plan.cpu)

    def wait_until_up(self, ends: float | None, progress: Progress) -> None:
        """Wait until the server answers, record its settings, and drop workloads that its pool cannot hold.

        Raises:
            Died: it ended, or was not up after ``plan.start_limit`` seconds.
        """
        seconds = self.server.wait_until_ready(self.plan.start_limit, progress)
        settings = self.server.settings()
        start = {
            "process": "vllm" if self.arm.vllm else "server",
            "seconds": seconds,
            "settings": settings,
            "patches": self.server.patches(),
        }
        records.append(self.plan.raw, "start", **self._who, **start)
        pool = settings.get("max_total_num_tokens")
        progress(f"server up after {seconds:.0f} s" + (f", {pool} tokens in its pool" if pool else ""))
        self.drop_what_does_not_fit(settings, progress)

    def drop_what_does_not_fit(self, settings: Mapping[str, Any], progress: Progress) -> None:
        """Keep of :attr:`tasks` what the pool in ``settings`` can hold; why the rest was not run is recorded."""
        for workload in self.plan.workloads:
            try:
                if any(name == workload.name for _, name, _ in self.tasks):
                    check_pool(workload, settings)
            except ValueError as error:
                crash: dict[str, Any] = {"during": workload.name, "exit_status": None, "log_tail": [], "why": str(error)}
                records.append(self.plan.raw, "crash", **self._who, **crash)
                progress(str(error))
                self.tasks = [task for task in self.tasks if task[1] != workload.name]

    def do(self, task: Task, ends: float | None, progress: Progress) -> None:
        """One pass, until its record is on disk.

        Raises:
            Died: the server ended, or the pass took more than ``plan.pass_limit`` seconds.
        """
        _, name, number = task
        counted = number != WARM_UP
        asked, seed = asked_of(self.plan, task)

        def told(text: str) -> None:
            progress(f"{name} {f'{number + 1}/{self.plan.repetitions}' if counted else 'warm-up'}: {text}")

        try:
            with gauges.Watch(self.server.url, gauges.memory_in_use(self.server.process.pid)) as watch:
                row = self.passes.run(asked, self.server, self.plan.model, seed, self.plan.pass_limit, told)
        except OSError:
            time.sleep(client.GRACE)
            self.server.check()
            raise
        self.server.check()
        row |= generated(row, watch.added.get("sglang:generation_tokens_total"))
        row |= {
            "accept_length": gauges.accept_length(watch.added, row["completed"]),
            "retractions": watch.added.get("sglang:num_retracted_requests_total", 0.0),
            "prefill_tokens": watch.added.get("sglang:realtime_tokens_total[prefill_compute]"),
            **{peak: watch.peaks.get(peak) for peak in (*gauges.PEAKS, "memory_peak_gib")},
        }
        records.append(self.plan.raw, "repetition", **self._who, workload=name, repetition=number, counted=counted, **row)
        failed = f", {row['failed']} requests failed: {row['errors'][:1]}" if row["failed"] else ""
        told(f"{row['output_throughput']:.0f} output tokens/s in {row['seconds']:.1f} s{failed}")

    def dismiss(self) -> None:
        """Nothing: a server is stopped."""

    def finish(self, progress: Progress) -> None:
        """Nothing: a server does not end by itself."""

    def stop(self) -> None:
        """End the server's process group."""
        self.server.stop()


def asked_of(plan: Plan, task: Task) -> tuple[Workload, int]:
    """The workload of a pass, and the seed of its prompts."""
    workload = next(workload for workload in plan.workloads if workload.name == task[1])
    return (warm_up(workload), 0) if task[2] == WARM_UP else (workload, 1 + task[2])


def generated(row: dict[str, Any], tokens: float | None) -> dict[str, Any]:
    """Corrections of a ``repetition`` record whose client counted tokens that the server never generated.

    SGLang answers a request that it refuses in mid-stream with status 200 and an error chunk; its client then counts every token that
    was asked for. The server's own counter knows better.
    """
    if tokens is None or tokens >= 0.99 * row["output_tokens"]:
        return {}
    missing = int(row["output_tokens"] - tokens)
    return {"output_tokens": int(tokens), "output_throughput": tokens / row["seconds"], "missing_tokens": missing}
