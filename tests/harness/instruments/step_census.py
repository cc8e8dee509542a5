"""What the scheduler does for a decode step besides the target's forward, in the log. ``step_census:watch``, or
``:overlapped``.

After each decode step a line ``STEP {...}``: the batch's size, the draft length (-1 on a server without a draft), and
either ``ops`` or ``us``. ``ops`` are the torch operators that would be kernels on a GPU; views and allocations are
not counted. ``us`` are the thread's microseconds of CPU time. A step that is counted is not timed, because counting
takes longer than what it counts. ``ModelRunner.forward`` of the target and of the draft is left out, with the
metadata of the attention backend that a graph's replay prepares outside of it.
"""

import functools
import importlib
import json
import re
import time
from collections import Counter, defaultdict
from statistics import median
from typing import Any

MARK = "STEP "
NO_KERNEL = ("aten.empty", "aten.detach", "aten._to_copy", "aten.lift", "aten.alias", "aten.resize", "aten._local_scalar", "profiler")


def watch() -> None:
    """In an engine whose loop is synchronous."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Count(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = str(func)
            if not func.is_view and not name.startswith(NO_KERNEL):
                state["ops"][name] += 1
            return func(*args, **(kwargs or {}))

    state: dict[str, Any] = {"ops": Counter(), "forward": 0.0, "steps": 0, "count": None}
    scheduler: Any = importlib.import_module("sglang.srt.managers.scheduler").Scheduler
    runner: Any = importlib.import_module("sglang.srt.model_executor.model_runner").ModelRunner
    run_batch, forward = scheduler.run_batch, runner.forward

    def counted_forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        begin = time.thread_time()
        counting = state["count"]
        if counting is not None:
            counting.__exit__(None, None, None)
        try:
            return forward(self, *args, **kwargs)
        finally:
            if counting is not None:
                counting.__enter__()
            state["forward"] += time.thread_time() - begin

    @functools.wraps(run_batch)  # a hook that goes here later finds the source that it was written for
    def counted_run(self: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        if not batch.forward_mode.is_decode():
            return run_batch(self, batch, *args, **kwargs)
        state["steps"] += 1
        state["forward"], state["ops"] = 0.0, Counter()
        found: dict[str, Any] = {"batch": len(batch.reqs)}
        if state["steps"] % 2:
            begin = time.thread_time()
            result = run_batch(self, batch, *args, **kwargs)
            found["us"] = round(1e6 * (time.thread_time() - begin - state["forward"]))
        else:
            state["count"] = Count()
            with state["count"]:
                result = run_batch(self, batch, *args, **kwargs)
            state["count"] = None
            found["ops"] = dict(state["ops"])
        found["steps"] = getattr(self.model_worker, "speculative_num_steps", -1)
        print(MARK + json.dumps(found), flush=True)
        return result

    scheduler.run_batch, runner.forward = counted_run, counted_forward


def overlapped() -> None:
    """In an engine that may overlap."""
    modes: Any = importlib.import_module("tests.harness.instruments.loop_modes")
    modes._relay_in_torch()
    watch()


def read(log: str, batch: int) -> dict[int, tuple[Counter[str], float]]:
    """By draft length: the operators of most steps with that many requests, and the median of the microseconds."""
    ops: dict[int, Counter[tuple[tuple[str, int], ...]]] = defaultdict(Counter)
    times: dict[int, list[float]] = defaultdict(list)
    for line in re.findall(rf"{MARK}(\{{.*\}})", log):
        step = json.loads(line)
        if step["batch"] == batch and "us" in step:
            times[step["steps"]].append(step["us"])
        elif step["batch"] == batch:
            ops[step["steps"]][tuple(sorted(step["ops"].items()))] += 1
    return {steps: (Counter(dict(ops[steps].most_common(1)[0][0])), median(times[steps])) for steps in ops if steps in times}
