"""An arm's server and its passes; the counterpart of ``step_engine.StepEngine``."""

import time
from collections.abc import Callable, Mapping
from typing import Any

from sglang_gemma4.benchmark import client, gauges, records, session_report, warm_check
from sglang_gemma4.benchmark.arms import Arm
from sglang_gemma4.benchmark.plan import WARM_UP, Plan, Task
from sglang_gemma4.benchmark.server import Server
from sglang_gemma4.benchmark.vllm import VllmServer
from sglang_gemma4.benchmark.workloads import Workload, check_fits, warm_up

Progress = Callable[[str], None]


class ServerSide:
    """A server of an arm; its tasks are passes of SGLang's benchmark client, which all servers share."""

    def __init__(self, plan: Plan, arm: Arm, environment: Mapping[str, str], round_: int, tasks: list[Task], passes: client.Client) -> None:
        self.plan, self.arm, self.tasks, self.passes = plan, arm, tasks, passes
        self._who = {"arm": arm.name, "round": round_}
        own, flags = {**environment, **arm.environment}, plan.flags(arm)
        if arm.vllm:
            scratch = plan.folder / "scratch" if plan.dummy_weights else None
            self.server: Server = VllmServer(plan.vllm_python, plan.model, flags, own, plan.log(arm), scratch, plan.vllm_version)
        else:
            self.server = Server(plan.model, flags, own, plan.log(arm), cpu=plan.cpu)

    def wait_until_up(self, ends: float | None, progress: Progress) -> None:
        """Wait until the server answers, record its settings, and drop workloads that its pool cannot hold.

        Raises:
            Died: it ended, or was not up after ``plan.start_limit`` seconds.
        """
        seconds = self.server.wait_until_ready(self.plan.start_limit, progress)
        start = records.append(self.plan.raw, "start", **self._who, seconds=seconds, **self.server.describe())
        pool = start["settings"].get("max_total_num_tokens")
        progress(f"server up after {seconds:.0f} s" + (f", {pool} tokens in its pool" if pool else ""))
        if pool:
            self.drop_what_does_not_fit(pool, progress)

    def drop_what_does_not_fit(self, pool: int, progress: Progress) -> None:
        """Drop from :attr:`tasks` the workloads that a KV pool of ``pool`` tokens cannot hold, and record why."""
        asked = {task[1] for task in self.tasks}
        for workload in (workload for workload in self.plan.workloads if workload.name in asked):
            remedy = "raise --mem-fraction-static, lower --swa-full-tokens-ratio, or choose a shorter workload"
            try:
                check_fits(workload, "this server's KV pool holds", pool, remedy)
            except ValueError as error:
                records.append(
                    self.plan.raw, "crash", **self._who, during=workload.name, exit_status=None, log_tail=[], why=str(error)
                )  # fmt: skip
                progress(str(error))
                self.tasks = [task for task in self.tasks if task[1] != workload.name]

    def do(self, task: Task, ends: float | None, progress: Progress) -> None:
        """Run one pass until its record is on disk.

        Raises:
            Died: the server ended, or the pass took more than ``plan.pass_limit`` seconds.
        """
        _, name, number = task
        counted = number != WARM_UP
        asked, seed = asked_of(self.plan, task)

        def told(text: str) -> None:
            progress(f"{name} {f'{number + 1}/{self.plan.repetitions}' if counted else 'warm-up'}: {text}")

        try:
            with gauges.watch(self.server.url, self.server.process.pid) as watched:
                row = self.passes.run(asked, self.server, seed, self.plan.pass_limit, told)
        except OSError:
            time.sleep(client.GRACE)
            self.server.check()
            raise
        self.server.check()
        kept = row.pop("kept", [])
        if asked.sessions and counted:
            row["pools"] = session_report.pools(watched.added)
            if number == 0 and kept:
                row["warm_check"] = self._warm_check(kept, told)
        row |= generated(row, watched.added_tokens)
        row |= {
            "accept_length": watched.accept_length(row["completed"]),
            "retractions": watched.added.get("sglang:num_retracted_requests_total", 0.0),
            "prefill_tokens": watched.added.get("sglang:realtime_tokens_total[prefill_compute]"),
            **watched.peaks,
        }
        records.append(self.plan.raw, "repetition", **self._who, workload=name, repetition=number, counted=counted, **row)
        failed = f", {row['failed']} requests failed: {row['errors'][:1]}" if row["failed"] else ""
        told(f"{row['output_throughput']:.0f} output tokens/s in {row['seconds']:.1f} s{failed}")

    def _warm_check(self, kept: list[dict[str, Any]], told: Progress) -> dict[str, Any]:
        """The result of ``warm_check``, or why it could not be asked; the pass before it counts in both cases.

        Raises:
            Died: the server ended meanwhile.
        """
        environment = {**self.plan.environment, **self.arm.environment}
        if self.arm.uses_mtp and environment.get("SGLANG_SIMULATE_ACC_LEN"):
            return {"why": "with a simulated accept length drafts are accepted by lot"}
        told(f"asking the last turn of {len(kept)} sessions again, cold and warm")
        try:
            return warm_check.check(self.server.url, self.server.engine, self.plan.model, kept)
        except (OSError, RuntimeError, LookupError, ValueError) as error:  # an invalid answer, or a cache that was not emptied
            time.sleep(client.GRACE)
            self.server.check()
            return {"why": f"a request failed ({type(error).__name__}: {error})"}

    def stop(self) -> None:
        """End the server's process group."""
        self.server.stop()


def asked_of(plan: Plan, task: Task) -> tuple[Workload, int]:
    """The workload of a pass, and the seed of its prompts."""
    workload = next(workload for workload in plan.workloads if workload.name == task[1])
    return (warm_up(workload), 0) if task[2] == WARM_UP else (workload, 1 + task[2])


def generated(row: dict[str, Any], tokens: float | None) -> dict[str, Any]:
    """Corrections of a ``repetition`` record whose client counted tokens that the server never generated.

    SGLang answers a request that it refuses in mid-stream with status 200 and an error chunk; its client then counts
    every token that was asked for. The server's own counter is correct.
    """
    if tokens is None or tokens >= 0.99 * row["output_tokens"]:
        return {}
    missing = int(row["output_tokens"] - tokens)
    return {"output_tokens": int(tokens), "output_throughput": tokens / row["seconds"], "missing_tokens": missing}
