"""The trade-off of an engine's limit on pauses: p99 inter-token latency against p99 TTFT and tokens/s, as one curve per engine.

The package has ``SGLANG_GEMMA4_BESIDE_GAP``, vLLM its token budget per step. An arm ``ENGINE@SETTING`` is one point
of that engine's curve.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sglang_gemma4.benchmark.results import METRIC, Results
from sglang_gemma4.benchmark.statistics import Summary, summary
from sglang_gemma4.patching import switches

GAPS = ("25ms", "latency", "100ms", "balanced", "250ms")
BUDGETS = (1024, 2048, 4096, 8192, 16384)
NAMES = {"package": "this package", "vllm": "vLLM"}


@dataclass(frozen=True)
class Point:
    """Medians over the passes of one arm; times in ms."""

    setting: str
    itl: Summary
    ttft: Summary
    throughput: Summary


def arms(mtp: bool, vllm: bool) -> list[str]:
    """The arms of ``--frontier``, as their command-line texts; a dry run has no vLLM."""
    how = ",mtp" if mtp else ""
    found = [f"package@{gap}:package{how},{switches.BESIDE_GAP}={gap}" for gap in GAPS]
    return found + [f"vllm@{budget}:vllm{how},--max-num-batched-tokens={budget}" for budget in BUDGETS if vllm]


def curves(results: Results, workload: str) -> dict[str, list[Point]]:
    """By engine, its points in the order of the arms; engines with a single point are left out."""
    import numpy as np

    found: dict[str, list[Point]] = {}
    for arm in results.arms:
        engine, at, setting = arm.partition("@")
        own = [record for record in results.at(workload, arm) if record.get("itl_ms") and record["ttft_ms"]]
        if at and own:
            ttft = summary([float(np.percentile(record["ttft_ms"], 99)) for record in own])
            itl = summary([float(record["itl_ms"]["p99"]) for record in own])
            found.setdefault(engine, []).append(Point(setting, itl, ttft, summary([float(record[METRIC]) for record in own])))
    return {engine: points for engine, points in found.items() if len(points) > 1}


def draw(results: Results, path: Path, figure_of: Callable[..., Any], looks: Mapping[str, tuple[str, str]]) -> bool:
    """Draw a row per workload: TTFT and tokens/s over ITL, each point labelled with its setting; False without curves."""
    drawn = {workload: found for workload in results.workloads if (found := curves(results, workload))}
    if not drawn:
        return False
    title = "What a bound on pauses trades (lower left is better; for tokens/s, upper left)"
    with figure_of(0.9 + 4.2 * len(drawn), results, title, path) as figure:
        for row, (workload, found) in zip(figure.subplots(len(drawn), 2, squeeze=False), drawn.items(), strict=True):
            for axis, name, label in zip(row, ("ttft", "throughput"), ("p99 time to first token (ms)", "output tokens/s"), strict=True):
                for engine, points in found.items():
                    colour, marker = looks.get(engine, ("#000000", "*"))
                    x, y = [point.itl.median for point in points], [getattr(point, name).median for point in points]
                    axis.plot(x, y, "-", marker=marker, color=colour, label=NAMES.get(engine, engine), lw=2, ms=7)
                    for point, across, up in zip(points, x, y, strict=True):
                        axis.annotate(point.setting, (across, up), xytext=(4, 4), textcoords="offset points", fontsize=11)
                axis.set_xlabel("p99 between tokens (ms)")
                axis.set_ylabel(label)
                axis.set_xlim(left=0)
                axis.set_ylim(bottom=0)
                axis.set_title(workload, loc="left", fontsize=12)
    return True
