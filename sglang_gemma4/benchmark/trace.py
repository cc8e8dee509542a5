"""Reading a Chrome trace of torch.profiler as SGLang writes it: kernel times, and the scheduler's batches that they belong to.

The scheduler marks each batch with a ``scheduler.run_batch`` span, and in it the target model marks its forward pass
(``step[EXTEND …]``, ``step[DECODE …]``, under MTP ``step[VERIFY …]``).
"""

import gzip
import hashlib
import json
import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sglang_gemma4.benchmark.kernel_categories import category

Event = dict[str, Any]
GPU = ("kernel", "gpu_memcpy", "gpu_memset")
LAUNCHES = ("cuda_runtime", "cuda_driver")
_STEP = re.compile(r"step\[(\w+) bs=(\d+)(?: toks=(\d+))?")
_AWAY = tuple(f"scheduler.{name}" for name in ("recv_requests", "process_input_requests", "sanity_check_cache", "idle"))
"""What the scheduler does between batches and for none of them: emptying the cache between two passes, for one."""
_STAGE_OF = {"EXTEND": "prefill", "MIXED": "prefill", "DECODE": "decode", "VERIFY": "decode"}
# Words of template arguments that tell nothing apart: types, wrappers and helpers of PyTorch's pointwise and reduce kernels.
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


@dataclass(frozen=True)
class Timed:
    name: str
    launched: float
    start: float
    microseconds: float


class Trace:
    """The complete events of one trace file, ``.json`` or ``.json.gz``.

    Raises:
        ValueError: the file is not a Chrome trace of torch.profiler.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.events = _load(path)
        self.steps: list[Step] = _steps(self.events)
        """The scheduler's batches in the order in which they ran."""
        self.clock = "gpu" if any(event.get("cat") in GPU for event in self.events) else "cpu"
        """What :meth:`kernels` counts: "gpu" kernels, copies and sets on the card, or, in a trace without any, operators on the "cpu"."""

    def kernels(self, stage: str | None = None) -> list[dict[str, Any]]:
        """{``name``, ``category``, ``microseconds``, ``launches``, ``clock``} of each kernel, the longest first.

        A CPU operator counts its own time, without that of the operators it calls. A kernel counts from the end of what ran before it on
        its stream: under programmatic dependent launch it starts early and waits there. GPU work launched before the profiler started
        belongs to an earlier batch and is left out.

        Args:
            stage: "prefill" or "decode" leaves out what batches of the other stage launched, and what was launched for no batch.

        Raises:
            ValueError: ``stage`` is neither, or the trace holds no step of it.
        """
        total: dict[str, float] = defaultdict(float)
        launches: Counter[str] = Counter()
        for one in self.timed(stage):
            total[one.name] += one.microseconds
            launches[one.name] += 1
        short = short_names(total)
        return [
            {
                "name": short[name],
                "category": category(name),
                "microseconds": round(spent, 3),
                "launches": launches[name],
                "clock": self.clock,
            }
            for name, spent in sorted(total.items(), key=lambda item: -item[1])
        ]

    def busy(self, stage: str | None = None) -> float | None:
        """Microseconds in which the card ran something that :meth:`kernels` counts, on any stream; None where that counts operators.

        Streams that run at the same time make the kernels' sum longer than this; with one stream the two are equal.

        Raises:
            ValueError: see :meth:`kernels`.
        """
        if self.clock != "gpu":
            return None
        return round(sum(added for _, _, added in occupied(self.timed(stage))), 3)

    def timed(self, stage: str | None) -> list[Timed]:
        timed = list(_gpu_events(self.events) if self.clock == "gpu" else _own_times(self.events))
        if stage is None:
            return timed
        if not any(step.stage == stage for step in self.steps):
            has = ", ".join(sorted({step.stage for step in self.steps})) or "no step at all"
            raise ValueError(f"{self.path} holds no {stage!r} step but {has}; name that stage, or none for the whole trace")
        away = _away(self.events)
        return [one for one in timed if not away(one.launched) and _step_of(one.launched, self.steps).stage == stage]


def occupied(events: Iterable[Timed]) -> Iterator[tuple[Timed, float, float]]:
    """Events of all streams by their start: each with the microseconds the card idled before it and those it adds to busy time."""
    until: float | None = None
    for one in sorted(events, key=lambda one: one.start):
        end, begun = one.start + one.microseconds, one.start if until is None else until
        yield one, max(0.0, one.start - begun), max(0.0, end - max(one.start, begun))
        until = max(begun, end)


def kernels(trace: Path) -> list[dict[str, Any]]:
    """Every kernel of a trace file, see :meth:`Trace.kernels`."""
    return Trace(trace).kernels()


def _load(trace: Path) -> list[Event]:
    try:
        raw = trace.read_bytes()
        events = json.loads(gzip.decompress(raw) if trace.suffix == ".gz" else raw)["traceEvents"]
    except (ValueError, KeyError, TypeError, EOFError, gzip.BadGzipFile) as error:
        raise ValueError(f"{trace} is not a Chrome trace of torch.profiler ({error!r}); profile again") from None
    return [event for event in events if event.get("ph") == "X"]


def _steps(events: Iterable[Event]) -> list[Step]:
    spans = [event for event in events if event.get("cat") == "user_annotation"]
    batches = sorted((e["ts"], e["ts"] + e["dur"]) for e in spans if e["name"] == "scheduler.run_batch")
    ends = [end for _, end in batches]
    found = []
    for event in spans:
        match = _STEP.match(event["name"])
        stage = _STAGE_OF.get(match[1]) if match else None  # DRAFT and IDLE are no steps of their own
        if match is None or stage is None:
            continue
        where = bisect_left(ends, event["ts"])
        inside = where < len(batches) and batches[where][0] <= event["ts"]
        start, end = batches[where] if inside else (event["ts"], event["ts"] + event["dur"])
        found.append(Step(stage, int(match[2]), int(match[3]) if match[3] else None, start, end))
    return sorted(found, key=lambda step: step.start)


def _step_of(moment: float, batches: Sequence[Step]) -> Step:
    """The batch that launched something at ``moment``: the one running, else the next (it was being prepared), else the last."""
    return batches[min(bisect_left([step.end for step in batches], moment), len(batches) - 1)]


def _away(events: Iterable[Event]) -> Callable[[float], bool]:
    """Whether a moment lies in one of the spans ``_AWAY``."""
    merged: list[tuple[float, float]] = []
    for start, end in sorted((e["ts"], e["ts"] + e["dur"]) for e in events if e.get("name") in _AWAY):
        if not merged or start >= merged[-1][1]:  # else it lies within the span before
            merged.append((start, end))
    ends = [end for _, end in merged]

    def inside(moment: float) -> bool:
        where = bisect_left(ends, moment)
        return where < len(merged) and merged[where][0] <= moment

    return inside


def _gpu_events(events: list[Event]) -> Iterator[Timed]:
    """GPU events with the time of the call that launched them, each from the end of those before it on its stream.

    With programmatic dependent launch the later kernel is the one that waits (``griddepcontrol.wait``), so what two share belongs to the
    earlier one. CUDA numbers launches upwards, so what has a lower number than every launch in the trace was launched before the profiler
    started.
    """
    launched = {e["args"]["correlation"]: e["ts"] for e in events if e.get("cat") in LAUNCHES and "correlation" in e.get("args", {})}
    first = min(launched, default=0)
    ended: dict[Any, float] = defaultdict(float)  # by device and stream
    for event in sorted((e for e in events if e.get("cat") in GPU), key=lambda e: (e["ts"], e["dur"])):
        stream = (event.get("pid"), event.get("tid"))
        start, end = max(event["ts"], ended[stream]), event["ts"] + event["dur"]
        ended[stream] = max(end, ended[stream])
        correlation = event.get("args", {}).get("correlation", first)
        if correlation >= first:
            yield Timed(event["name"], launched[correlation] if correlation in launched else event["ts"], start, max(0.0, end - start))


def _own_times(events: list[Event]) -> Iterator[Timed]:
    """CPU operators with the time they spent themselves, not in operators they called."""
    by_thread: dict[Any, list[Event]] = defaultdict(list)
    for event in events:
        if event.get("cat") == "cpu_op":
            by_thread[(event.get("pid"), event.get("tid"))].append(event)
    for thread in by_thread.values():
        own = [event["dur"] for event in thread]
        order = sorted(range(len(thread)), key=lambda i: (thread[i]["ts"], -thread[i]["dur"]))
        running: list[int] = []
        for i in order:
            while running and thread[running[-1]]["ts"] + thread[running[-1]]["dur"] <= thread[i]["ts"]:
                running.pop()
            if running:
                own[running[-1]] -= thread[i]["dur"]
            running.append(i)
        for event, microseconds in zip(thread, own, strict=True):
            yield Timed(event["name"], event["ts"], event["ts"], max(0.0, microseconds))


def short_names(names: Iterable[str]) -> dict[str, str]:
    """A short name for each, all different: without arguments and namespaces, and of the template arguments the two that say most.

    Where two would read the same, each gets four hexadecimal digits of its full name's hash.
    """
    short = {name: _short(name) for name in names}
    taken = Counter(short.values())
    return {name: f"{text} #{hashlib.sha256(name.encode()).hexdigest()[:4]}" if taken[text] > 1 else text for name, text in short.items()}


def _short(name: str) -> str:
    bare = name.replace("(anonymous namespace)::", "").removeprefix("void ")
    head = re.split(r"[<(]", bare, maxsplit=1)[0]
    if head == bare or not head.strip() or head.endswith(" "):  # "Memcpy DtoD (Device -> Device)" is no C++
        return name
    template = bare[len(head) :].partition(">(")[0] if bare[len(head)] == "<" else ""
    words = [word for word in re.findall(r"[A-Za-z_]\w{3,}", template) if not _PLAIN_WORDS.match(word)]
    base = head.rpartition("::")[2]
    kept = [word for word in dict.fromkeys(words) if word != base][:2]
    return f"{base}<{', '.join(kept)}>" if kept else base
