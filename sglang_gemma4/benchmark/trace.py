"""Reads a Chrome trace of torch.profiler as SGLang writes it: kernel times, and the scheduler's batches that they belong to.

The scheduler marks each batch with a ``scheduler.run_batch`` span, in which the target model marks its forward pass
(``step[EXTEND …]``, ``step[DECODE …]``, under MTP ``step[VERIFY …]``).
"""

import gzip
import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped, unused-ignore]

from sglang_gemma4.benchmark.kernel_categories import category

GPU = ("kernel", "gpu_memcpy", "gpu_memset")
LAUNCHES = ("cuda_runtime", "cuda_driver")
HOST = ("user_annotation", "cpu_op", *LAUNCHES)
_BATCH = "scheduler.run_batch"
_STEP = re.compile(r"step\[(\w+) bs=(\d+)(?: toks=(\d+))?")
_STEP_DETAILS = re.compile(r"(?<=^step\[)(\w+) .*\]$")
_AWAY = tuple(f"scheduler.{name}" for name in ("recv_requests", "process_input_requests", "sanity_check_cache", "idle"))
"""Work of the scheduler between batches that belongs to no batch, such as emptying the cache between two passes."""
_STAGE_OF = {"EXTEND": "prefill", "MIXED": "prefill", "DECODE": "decode", "VERIFY": "decode"}
# Words in template arguments that do not distinguish kernels: types, wrappers and helpers of PyTorch's pointwise and
# reduce kernels.
_PLAIN_WORDS = re.compile(
    r"^(native|detail|at_cuda_detail|binary_internal|flash|cute|cutlass|anonymous|namespace|lambda|operator|const|true|false|"
    r"unsigned|signed|float|double|half|bool|char|short|long|void|array|"
    r"gpu_kernel\w*|TensorIteratorBase|BFloat16|Half|__nv_bfloat16|__half|bfloat16_t|OffsetCalculator|TrivialOffsetCalculator|"
    r"LoadWithoutCast|StoreWithoutCast|memory|ReduceOp|function_traits|arch|enable_sm\w*|instance|type)$"
)


@dataclass(frozen=True)
class Step:
    """One batch of the scheduler: ``stage``, requests in it, query tokens (prefill; None otherwise) and its span in microseconds."""

    stage: str
    batch: int
    tokens: int | None
    start: float
    end: float


class Trace:
    """The complete events of one trace file, ``.json`` or ``.json.gz``.

    Raises:
        ValueError: the file is not a Chrome trace of torch.profiler.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.events = _load(path)
        """A row per event: ``name``, ``cat``, ``ts`` and ``dur`` (microseconds), ``pid``, ``tid``, ``correlation`` (GPU work, launches)."""
        self.steps: list[Step] = _steps(self.events)
        """The scheduler's batches in the order in which they ran."""
        self.clock = "gpu" if self.events["cat"].isin(GPU).any() else "cpu"
        """What :meth:`kernels` counts: kernels, copies and sets on the "gpu" or, in a trace without any, operators on the "cpu"."""

    def kernels(self, stage: str | None = None) -> list[dict[str, Any]]:
        """{``name``, ``category``, ``microseconds``, ``launches``} of each kernel, the longest first.

        A CPU operator counts its own time, without that of the operators it calls. A kernel counts from the end of
        the previous work on its stream: under programmatic dependent launch it starts early and waits there. GPU work
        launched before the profiler started belongs to an earlier batch and is left out.

        Args:
            stage: "prefill" or "decode" leaves out what batches of the other stage launched, and what was launched
                for no batch.

        Raises:
            ValueError: ``stage`` is neither, or the trace holds no step of it.
        """
        total = self.timed(stage).groupby("name", sort=False)["microseconds"].agg(["sum", "size"])
        total = total.sort_values("sum", ascending=False, kind="stable")
        short = short_names(total.index)
        return [
            {"name": short[name], "category": category(name), "microseconds": round(float(spent), 3), "launches": int(launches)}
            for name, spent, launches in total.itertuples()
        ]

    def host_calls(self, stage: str) -> tuple[float, list[dict[str, Any]]]:
        """Microseconds from the first to the last batch of a stage, and {``name``, ``microseconds``, ``calls``} of
        what the scheduler's thread did in them, the longest first.

        Each call, operator or span counts its own time, without the ones inside it: a span's own time is its Python
        code. The profiler slows the host down: each operator by a microsecond or two.

        Raises:
            ValueError: see :meth:`kernels`.
        """
        self._holds(stage)
        begun, ended = (pick(at for step in self.steps if step.stage == stage for at in (step.start, step.end)) for pick in (min, max))
        thread = self.events[self.events["name"].str.match(_STEP)][["pid", "tid"]].iloc[0]
        mine = self.events[self.events["cat"].isin(HOST) & (self.events["pid"] == thread["pid"]) & (self.events["tid"] == thread["tid"])]
        own = _own_times(mine[(mine["ts"] >= begun) & (mine["ts"] < ended)])
        own["name"] = [_STEP_DETAILS.sub(r"\1]", name) for name in own["name"]]
        total = own.groupby("name", sort=False)["microseconds"].agg(["sum", "size"]).sort_values("sum", ascending=False, kind="stable")
        calls = [{"name": name, "microseconds": round(float(spent), 3), "calls": int(calls)} for name, spent, calls in total.itertuples()]
        return round(ended - begun, 3), calls

    def _holds(self, stage: str) -> None:
        if not any(step.stage == stage for step in self.steps):
            has = ", ".join(sorted({step.stage for step in self.steps})) or "no step at all"
            raise ValueError(f"{self.path} holds no {stage!r} step but {has}; name that stage, or none for the whole trace")

    def busy(self, stage: str | None = None) -> float | None:
        """Microseconds in which the GPU ran something that :meth:`kernels` counts, on any stream; None if that counts operators.

        If streams run in parallel, the sum over kernels is larger than this; with one stream the two are equal.

        Raises:
            ValueError: see :meth:`kernels`.
        """
        return round(float(self.occupied(stage)["added"].sum()), 3) if self.clock == "gpu" else None

    def occupied(self, stage: str | None) -> pd.DataFrame:
        """:meth:`timed` sorted by start over all streams, with ``idle`` (microseconds the GPU idled before) and ``added`` (busy ones)."""
        timed = self.timed(stage).sort_values("start", kind="stable")
        start, end = timed["start"], timed["start"] + timed["microseconds"]
        until = end.cummax().shift().fillna(start)
        return timed.assign(idle=(start - until).clip(lower=0), added=(end - np.maximum(start, until)).clip(lower=0))

    def timed(self, stage: str | None) -> pd.DataFrame:
        """``name``, ``launched``, ``start`` and ``microseconds`` of everything that :meth:`kernels` counts."""
        timed = _gpu_events(self.events) if self.clock == "gpu" else _own_times(self.events[self.events["cat"] == "cpu_op"])
        if stage is None:
            return timed
        self._holds(stage)
        # The batch that launched it: the running one, else the next (which was being prepared), else the last.
        batch = np.searchsorted([step.end for step in self.steps], timed["launched"]).clip(max=len(self.steps) - 1)
        stages = np.array([step.stage for step in self.steps])
        away = self.events[self.events["name"].isin(_AWAY)].sort_values("ts")
        return timed[(stages[batch] == stage) & (holding(away, timed["launched"]) < 0)]


def _load(trace: Path) -> pd.DataFrame:
    try:
        raw = trace.read_bytes()
        events = json.loads(gzip.decompress(raw) if trace.suffix == ".gz" else raw)["traceEvents"]
    except (ValueError, KeyError, TypeError, EOFError, gzip.BadGzipFile) as error:
        raise ValueError(f"{trace} is not a Chrome trace of torch.profiler ({error!r}); profile again") from None
    columns = ("name", "cat", "ts", "dur", "pid", "tid")
    rows = [[*map(event.get, columns), event.get("args", {}).get("correlation", np.nan)] for event in events if event.get("ph") == "X"]
    return pd.DataFrame(rows, columns=[*columns, "correlation"])


def _steps(events: pd.DataFrame) -> list[Step]:
    marks = events[events["cat"] == "user_annotation"].sort_values("ts")
    batches = marks[marks["name"] == _BATCH]
    found = []
    for batch, name, start, lasted in zip(holding(batches, marks["ts"]), marks["name"], marks["ts"], marks["dur"], strict=True):
        match = _STEP.match(name)
        if match and (stage := _STAGE_OF.get(match[1])):  # DRAFT and IDLE are not steps by themselves
            begun, spent = (batches["ts"].iat[batch], batches["dur"].iat[batch]) if batch >= 0 else (start, lasted)
            found.append(Step(stage, int(match[2]), int(match[3]) if match[3] else None, float(begun), float(begun + spent)))
    return sorted(found, key=lambda step: step.start)


def holding(spans: pd.DataFrame, moments: Any) -> np.ndarray:
    """For each moment the index of the last of ``spans`` (sorted by ``ts``) that began before it; -1 if no span is running then."""
    at = np.searchsorted(spans["ts"], moments, side="right") - 1
    ends = np.append((spans["ts"] + spans["dur"]).cummax(), -np.inf)  # the last entry is for moments before every span
    found: np.ndarray = np.where(moments <= ends[at], at, -1)
    return found


def _gpu_events(events: pd.DataFrame) -> pd.DataFrame:
    """GPU events with the time of the call that launched them; each begins at the end of the previous event on its stream.

    With programmatic dependent launch the later kernel waits (``griddepcontrol.wait``), so shared time belongs to the
    earlier one. CUDA numbers launches upwards, so an event with a lower number than every launch in the trace was
    launched before the profiler started.
    """
    calls = events[events["cat"].isin(LAUNCHES)].dropna(subset="correlation").drop_duplicates("correlation", keep="last")
    launched = calls.set_index("correlation")["ts"]
    first = launched.index.min() if len(launched) else 0
    gpu = events[events["cat"].isin(GPU)].sort_values(["ts", "dur"])
    end, stream = gpu["ts"] + gpu["dur"], [gpu["pid"], gpu["tid"]]
    ended = end.groupby(stream, dropna=False).cummax().groupby(stream, dropna=False).shift()
    start = np.fmax(gpu["ts"], ended)
    timed = pd.DataFrame(
        {
            "name": gpu["name"],
            "launched": gpu["correlation"].map(launched).fillna(gpu["ts"]),
            "start": start,
            "microseconds": (end - start).clip(lower=0),
        }
    )
    return timed[gpu["correlation"].fillna(first) >= first]


def _own_times(events: pd.DataFrame) -> pd.DataFrame:
    """Calls on the host with their own time, without that of the calls inside them."""
    operators = events.sort_values(["ts", "dur"], ascending=[True, False])
    own = operators["dur"].to_numpy(float, copy=True)
    ends = (operators["ts"] + operators["dur"]).to_numpy()
    running: dict[Any, list[int]] = {}  # by thread, the operators that have not ended, each called by the previous one
    for row, (pid, tid, start) in enumerate(zip(operators["pid"], operators["tid"], operators["ts"], strict=True)):
        callers = running.setdefault((pid, tid), [])
        while callers and ends[callers[-1]] <= start:
            callers.pop()
        if callers:
            own[callers[-1]] -= operators["dur"].iat[row]
        callers.append(row)
    times = {"launched": operators["ts"], "start": operators["ts"], "microseconds": own.clip(min=0)}
    return operators[["name"]].assign(**times)


def short_names(names: Iterable[str]) -> dict[str, str]:
    """A short, unique name for each: without arguments and namespaces, and with the two most telling template arguments.

    Where two names would be equal, each gets four hexadecimal digits of its full name's hash.
    """
    short = {name: _short(name) for name in names}
    taken = Counter(short.values())
    return {name: f"{text} #{hashlib.sha256(name.encode()).hexdigest()[:4]}" if taken[text] > 1 else text for name, text in short.items()}


def _short(name: str) -> str:
    bare = name.replace("(anonymous namespace)::", "").removeprefix("void ")
    head = re.split(r"[<(]", bare, maxsplit=1)[0]
    if head == bare or not head.strip() or head.endswith(" "):  # "Memcpy DtoD (Device -> Device)" is not C++
        return name
    template = bare[len(head) :].partition(">(")[0] if bare[len(head)] == "<" else ""
    words = [word for word in re.findall(r"[A-Za-z_]\w{3,}", template) if not _PLAIN_WORDS.match(word)]
    base = head.rpartition("::")[2]
    kept = [word for word in dict.fromkeys(words) if word != base][:2]
    return f"{base}<{', '.join(kept)}>" if kept else base
