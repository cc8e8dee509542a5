"""``sglang-gemma4 dashboard``: a Grafana dashboard over SGLang's own metrics, and whether a live server exports them.

``dashboard.json`` is imported as it is (Dashboards, New, Import); it asks for its Prometheus data source itself.

SGLang's names have a colon. prometheus_client writes it as an underscore for a Prometheus that does not ask for names
as they are (2.x, or 3.x with its name escaping set to underscores), so a query selects ``__name__=~"sglang[:_]NAME"``.
"""

import argparse
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sglang_gemma4.diagnostics import live

FILE = Path(__file__).with_name("dashboard.json")
METRIC = re.compile(r'__name__=~"sglang\[:_\](\w+)"')
LATE = {
    "sglang:num_retracted_requests_total": "exported from the first retraction on; the panel shows 0 until then",
    "sglang:spec_verify_calls_total": "exported from the first answer made with speculative decoding on",
    "sglang:realtime_tokens_total": "exported from the first log interval on",
    "sglang:inter_token_latency_seconds_bucket": "exported from the first answer of several tokens on",
}
"""Metrics that a healthy server may not export yet, and why. SGLang creates a labelled counter with its first count."""


@dataclass(frozen=True)
class Query:
    """One PromQL expression of a panel."""

    panel: str
    expr: str

    @property
    def metrics(self) -> list[str]:
        """The SGLang metrics it reads, as SGLang names their samples."""
        return metrics(self.expr)


def metrics(expr: str) -> list[str]:
    """The SGLang metrics that a PromQL expression or selector reads, each once."""
    return sorted({f"sglang:{name}" for name in METRIC.findall(expr)})


def load() -> dict[str, Any]:
    """The dashboard in Grafana's JSON model."""
    board: dict[str, Any] = json.loads(FILE.read_text())
    return board


def queries(board: dict[str, Any]) -> Iterator[Query]:
    """Every query of every panel, from top to bottom."""
    for panel in board["panels"]:
        for target in panel.get("targets", []):
            yield Query(panel["title"], target["expr"])


def exported(text: str) -> set[str]:
    """Names of the samples in the text format of /metrics."""
    return {re.split(r"[{ ]", line, maxsplit=1)[0] for line in text.splitlines() if line and not line.startswith("#")}


def missing(board: dict[str, Any], text: str) -> list[tuple[Query, str]]:
    """Each query with a metric that the text of /metrics does not have."""
    there = exported(text)
    return [(query, metric) for query in queries(board) for metric in query.metrics if metric not in there]


def fetch(url: str, api_key: str | None = None) -> str:
    """The text of a server's /metrics.

    Raises:
        ValueError: nothing answers there, or the server runs without --enable-metrics.
    """
    return live.read(url, "/metrics", api_key, "start the server with --enable-metrics")


def report(board: dict[str, Any], text: str) -> tuple[str, bool]:
    """For a terminal: the dashboard's metrics that a server's /metrics has; and whether all are there or will come later."""
    absent: dict[str, list[str]] = {}
    for query, metric in missing(board, text):
        absent.setdefault(metric, []).append(query.panel)
    lines = []
    for metric, panels in sorted(absent.items()):
        state = "later  " if metric in LATE else "MISSING"
        lines.append(f"{state} {metric} ({', '.join(dict.fromkeys(panels))}){f': {LATE[metric]}' if metric in LATE else ''}")
    total = {metric for query in queries(board) for metric in query.metrics}
    lines.append(f"{len(total) - len(absent)} of the dashboard's {len(total)} metrics are exported")
    return "\n".join(lines), all(metric in LATE for metric in absent)


def add_command(commands: Any) -> None:
    """Add ``dashboard`` to the subcommands of the command line."""
    parser = commands.add_parser(
        "dashboard",
        help="print the Grafana dashboard, or check which of its metrics a running server exports",
        description="Print the dashboard as JSON for Grafana's import. Start servers with --enable-metrics for it.",
    )
    parser.add_argument("--url", metavar="URL", help="check this running server instead, for example http://127.0.0.1:30000")
    parser.add_argument("--api-key", metavar="KEY", help="the server's --api-key, where it has one")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    if not arguments.url:
        print(FILE.read_text(), end="")
        return 0
    text, complete = report(load(), fetch(arguments.url, arguments.api_key))
    print(text)
    return 0 if complete else 1
