"""What a run has to show, its table, and its lines."""

import json
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.hostile import costs
from tests.hostile.runner import Line, Result
from tests.hostile.watched import longest

LONGEST_STEP = 100.0
"""Milliseconds of CPU that one step of the event loop may take on an idle machine."""
SHARED = 2.0
"""Cores that other processes share take up to about twice the CPU time for the same step; a run fails beyond that."""
MORE_MEMORY = 0.15
"""Share by which a process may grow between a quarter of the requests and the end; or by MORE_MB."""
MORE_MB = 150


def problems(result: Result) -> list[str]:
    """What a run shows that it must not; empty where all is well."""
    found = [f"death after {death['after']} requests: {_cause(death['log'])}; in flight: {death['in_flight']}" for death in result.deaths]
    found += [f"hang: {hang}" for hang in result.hangs]
    found += [f"the bystander's answer changed: {change['answer']}" for change in result.changed[:5]]
    found += [f"status {line.outcome.statuses}: {line.request.shown()}: {line.outcome.text[:300]}" for line in failures(result.lines)]
    found += [f"cut: {line.request.shown()}: {line.outcome.text}" for line in result.lines if is_cut(line)]
    found += [f"the event loop stood for {step['ms']} ms of CPU: {_step(step)}" for step in stalls(result)]
    found += [f"{name} cost {seconds} s of CPU" for name, seconds in result.costs.items() if seconds > costs.MOST]
    return found + _memory(result) + _pools(result)


def failures(lines: Iterable[Line]) -> list[Line]:
    """Requests that were answered with a status of 500 or more."""
    return [line for line in lines if max(line.outcome.statuses) >= 500]


def is_cut(line: Line) -> bool:
    """Whether a request got no whole answer; a request that is no HTTP may get none."""
    return line.outcome.trouble in ("cut", "refused") and not line.request.kind.startswith(("header", "method", "path"))


def stalls(result: Result) -> list[dict[str, Any]]:
    """Steps of the loop that took too long."""
    return [step for step in result.steps if step["what"] in ("step", "callbacks") and step["ms"] > SHARED * LONGEST_STEP]


def _step(step: Any) -> str:
    return f"{step['name']}, request {step['number'] or '?'}, at {' > '.join(step['where'][-3:])}"


def _memory(result: Result) -> list[str]:
    if len(result.memory) < 2:
        return []
    before, after = result.memory[0], result.memory[-1]
    grown = {name: (mb, after.get(name, 0)) for name, mb in before.items() if after.get(name, 0) > mb * (1 + MORE_MEMORY) + MORE_MB}
    return [f"memory of {name} grew from {one} to {two} MB" for name, (one, two) in grown.items()]


def _pools(result: Result) -> list[str]:
    if result.deaths or result.hangs:
        return []
    held = {name: value for name, value in result.pools.items() if name != "flushed" and value}
    return [f"not empty at the end: {held}"] if held or "flushed" not in result.pools.get("flushed", "") else []


def table(result: Result, name: str, total: int) -> str:
    """The table's row as text, with its head."""
    statuses = Counter(max(line.outcome.statuses) // 100 for line in result.lines)
    head = ("server", "requests", "2xx", "4xx", "5xx", "deaths", "hangs", "bystander: answers, changed", "longest step, ms CPU", "not sent")
    counts = (len(result.lines), statuses[2], statuses[4], statuses[5], len(result.deaths), len(result.hangs))
    beside = (f"{result.answers}, {len(result.changed)}", longest(result.steps, "step", "callbacks")["ms"], result.not_sent)
    row = (name, *counts, *beside)
    return "\n".join("| " + " | ".join(map(str, cells)) + " |" for cells in (head, ["---"] * len(head), row))


def summary(result: Result, name: str, seed: int, total: int) -> str:
    """Table, distinct failures, and what else was measured."""
    parts = [
        table(result, name, total),
        "",
        f"seed {seed}, {total} requests planned, {result.seconds:.0f} s; the bystander's slowest answer {result.slowest_answer:.1f} s",
    ]
    parts.append(f"pools at the end: {result.pools}; memory in MB: {result.memory}; seconds of CPU: {result.cpu}")
    parts.append(f"the dearest schemas, seconds of CPU: {sorted(result.costs.items(), key=lambda item: -item[1])[:5]}")
    for what in ("step", "callbacks", "collector", "wall"):
        step = longest(result.steps, what)
        parts.append(f"longest {what}: {step['ms']} ms {step.get('name', '')} request {step.get('number', '')} {step.get('where', '')}")
    for title, found in distinct(result).items():
        parts.append(f"{len(found)} x {title}: {found[0]}")
    return "\n".join(parts)


def distinct(result: Result) -> dict[str, list[str]]:
    """Failures by cause: deaths by their last exception, statuses and stalls by path and message."""
    found: dict[str, list[str]] = {}
    for death in result.deaths:
        found.setdefault(f"death: {_cause(death['log'])}", []).append(str(death["in_flight"]))
    for hang in result.hangs:
        found.setdefault(f"hang: {hang.get('request', 'the whole server')[:60]}", []).append(str(hang))
    for line in failures(result.lines):
        message = re.sub(r"[0-9a-f]{16,}|\d+", "N", line.outcome.text[:160])
        found.setdefault(f"{max(line.outcome.statuses)} {line.request.path[:40]} {message}", []).append(line.request.shown())
    for line in filter(is_cut, result.lines):
        found.setdefault(f"cut {line.request.path[:40]} {line.request.kind}", []).append(line.request.shown())
    for step in stalls(result):
        found.setdefault(f"stall {step['what']} {step['name']} {step['where'][-2:]}", []).append(
            f"{step['ms']} ms, request {step['number']}"
        )
    return dict(sorted(found.items(), key=lambda item: -len(item[1])))


def _cause(log: str) -> str:
    """The last line of a traceback and where it was raised."""
    lines = [line for line in log.splitlines() if line.strip()]
    frames = [line.strip() for line in lines if re.match(r"\s+File ", line)]
    raised = next((line for line in lines if re.match(r"[A-Za-z_][\w.]*(Error|Exception|Interrupt|Exit)\b|\w[\w.]*: ", line)), "?")
    where = re.sub(r'File ".*?/(\w+/[\w.]+)", line (\d+), in (\w+)', r"\1:\2 \3", frames[-1]) if frames else "no traceback"
    return f"{raised[:160]} at {where}"


def write(result: Result, folder: Path, name: str, seed: int, total: int) -> None:
    """The summary, and a line of JSON for each request that was not answered with 2xx or 4xx, for each death, hang and long step."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.md").write_text(summary(result, name, seed, total) + "\n")
    with (folder / f"{name}.jsonl").open("w") as out:
        for line in result.lines:
            if max(line.outcome.statuses) >= 500 or line.outcome.trouble:
                entry = {"number": line.request.number, "kind": line.request.kind, "request": line.request.shown(1500), "life": line.life}
                entry |= {"statuses": line.outcome.statuses, "trouble": line.outcome.trouble, "text": line.outcome.text[:600]}
                out.write(json.dumps(entry) + "\n")
        for kind, entries in (("death", result.deaths), ("hang", result.hangs), ("step", result.steps)):
            out.writelines(json.dumps({"event": kind, **entry}) + "\n" for entry in entries)
