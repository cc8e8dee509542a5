"""The dashboard's JSON, its queries against SGLang's source, the command, and our metrics in prometheus_client's multiprocess mode."""

import argparse
import importlib.util
import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from sglang_gemma4 import __version__
from sglang_gemma4.diagnostics import dashboard, patch_metrics, pool_hits

BOARD = dashboard.load()
ROWS = [panel for panel in BOARD["panels"] if panel["type"] == "row"]
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
QUERIES = list(dashboard.queries(BOARD))
COLUMNS = 24  # of Grafana's grid


def sglang_metrics() -> dict[str, str]:
    """Names of the metrics in SGLang's collectors and their type, from the source: importing it takes half a minute."""
    (root,) = importlib.util.find_spec("sglang").submodule_search_locations  # type: ignore[union-attr, misc]
    source = (Path(root) / "srt" / "observability" / "metrics_collector.py").read_text()
    kinds = re.findall(r'= (Counter|Gauge|Histogram|Summary)\(\s*(?:#.*\s+)*name="(sglang:\w+)"', source)
    return {name: kind for kind, name in kinds}


def test_grafana_can_import_it() -> None:
    assert BOARD["schemaVersion"] >= 41
    assert "id" not in BOARD, "Grafana gives it one; with one it would overwrite another dashboard"
    assert "__inputs" not in BOARD, "the data source is a variable, so that provisioning works as well as the import page"
    source, *variables = BOARD["templating"]["list"]
    assert (source["name"], source["type"], source["query"]) == ("DS_PROMETHEUS", "datasource", "prometheus")
    assert [variable["name"] for variable in variables] == ["model", "instance"]
    owners = [*variables, *PANELS, *(target for panel in PANELS for target in panel["targets"])]
    assert {json.dumps(owner["datasource"]) for owner in owners} == {json.dumps({"type": "prometheus", "uid": "${DS_PROMETHEUS}"})}


def test_every_panel_is_complete() -> None:
    ids = [panel["id"] for panel in BOARD["panels"]]
    assert len(set(ids)) == len(ids)
    titles = [panel["title"] for panel in BOARD["panels"]]
    assert len(set(titles)) == len(titles)
    for panel in PANELS:
        assert panel["title"]
        assert panel["description"], panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["targets"], panel["title"]
        refs = [target["refId"] for target in panel["targets"]]
        assert len(set(refs)) == len(refs), panel["title"]


def cells(panel: dict[str, Any]) -> set[tuple[int, int]]:
    place = panel["gridPos"]
    return set(itertools.product(range(place["x"], place["x"] + place["w"]), range(place["y"], place["y"] + place["h"])))


def test_the_panels_tile_the_grid() -> None:
    taken: dict[tuple[int, int], str] = {}
    for panel in BOARD["panels"]:
        for cell in cells(panel):
            assert cell not in taken, f"{panel['title']} lies over {taken[cell]} at {cell}"
            taken[cell] = panel["title"]
    height = 1 + max(y for _, y in taken)
    assert set(taken) == set(itertools.product(range(COLUMNS), range(height))), "a hole, or a panel beyond the last column"
    tops = [(panel["gridPos"]["y"], panel["gridPos"]["x"]) for panel in BOARD["panels"]]
    assert tops == sorted(tops), "a row holds the panels that follow it in the list"
    assert [row["gridPos"]["w"] for row in ROWS] == [COLUMNS] * len(ROWS)


@pytest.mark.parametrize("query", QUERIES, ids=[f"{position} {query.panel}" for position, query in enumerate(QUERIES)])
def test_a_query_reads_metrics_that_exist(query: dashboard.Query) -> None:
    known = {f"{name}_bucket" if kind == "Histogram" else name for name, kind in sglang_metrics().items()}
    known |= {patch_metrics.NAME, f"{patch_metrics.COMPILED}_total", *pool_hits.COUNTERS}
    assert query.metrics
    assert set(query.metrics) <= known
    selectors = re.findall(r"\{[^}]*\}", query.expr)
    for selector in selectors:
        assert 'model_name=~"$model", instance=~"$instance"' in selector, "a selector that ignores the variables"
    assert query.expr.count("sglang") == len(selectors), "every metric is selected by name, with a colon or an underscore"


def test_what_the_issue_asks_for_is_there() -> None:
    wanted = "spec_accept_length spec_accept_rate full_token_usage swa_token_usage num_retracted_requests_total gemma4_patch_active"
    wanted += " num_running_reqs num_queue_reqs time_to_first_token_seconds_bucket inter_token_latency_seconds_bucket max_total_num_tokens"
    wanted += " gemma4_prompt_tokens_total gemma4_hit_tokens_total gemma4_full_hit_tokens_total gemma4_window_missed_tokens_total"
    wanted += " gemma4_full_evicted_tokens_total gemma4_swa_evicted_tokens_total"
    wanted += " gemma4_windows_taken_back_total gemma4_windows_unlocked_total"
    wanted += " gemma4_full_bound_seconds_total gemma4_swa_bound_seconds_total gemma4_limit_bound_seconds_total"
    assert {f"sglang:{name}" for name in wanted.split()} <= {metric for query in QUERIES for metric in query.metrics}
    quantiles = [
        expr for query in QUERIES if query.panel == "Time to first token" for expr in re.findall(r"quantile\(([\d.]+)", query.expr)
    ]
    assert quantiles == ["0.5", "0.95", "0.99"]


def test_every_counter_of_ours_is_on_the_dashboard_and_on_its_page() -> None:
    """docs/sessions.md says so; a counter that no panel shows is one that nobody finds."""
    shown = {metric for query in QUERIES for metric in query.metrics}
    assert {patch_metrics.NAME, *pool_hits.COUNTERS} <= shown
    page = (Path(__file__).parents[2] / "docs" / "sessions.md").read_text()
    described = set(re.findall(r"`(\w+_total)`", page))
    assert described == {name.removeprefix(pool_hits.PREFIX) for name in pool_hits.COUNTERS}


def test_one_panel_shows_running_requests_beside_both_pools() -> None:
    shown = {metric for query in QUERIES if query.panel == "Running requests beside the pools" for metric in query.metrics}
    assert shown == {f"sglang:{name}" for name in ("num_running_reqs", "num_queue_reqs", "full_token_usage", "swa_token_usage")}


def test_late_metrics_are_shown_ones() -> None:
    assert set(dashboard.LATE) <= {metric for query in QUERIES for metric in query.metrics}


def test_report_tells_missing_from_late() -> None:
    names = {metric for query in QUERIES for metric in query.metrics}
    late = "sglang:num_retracted_requests_total"
    lines = [f'{name}{{model_name="m"}} 1.0' for name in sorted(names - {late})]
    text, complete = dashboard.report(BOARD, "\n".join(["# HELP sglang:x y", *lines]))
    assert complete
    assert text.splitlines()[0].startswith(f"later   {late} (Retractions)")
    assert text.splitlines()[-1] == f"{len(names) - 1} of the dashboard's {len(names)} metrics are exported"
    text, complete = dashboard.report(BOARD, "\n".join(line for line in lines if "swa_token_usage" not in line))
    assert not complete
    assert "MISSING sglang:swa_token_usage (Sliding-window pool in use, Running requests beside the pools)" in text.splitlines()


def run(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser()
    dashboard.add_command(parser.add_subparsers())
    parsed = parser.parse_args(["dashboard", *arguments])
    return int(parsed.run(parsed))


def test_the_command_prints_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 0
    assert json.loads(capsys.readouterr().out) == BOARD


def test_no_server_is_one_sentence() -> None:
    with pytest.raises(ValueError, match=r"no SGLang server answers at http://127\.0\.0\.1:1 .*; check host and port"):
        run(["--url", "127.0.0.1:1"])


PUBLISH = """
import sys
from sglang_gemma4 import patching
from sglang_gemma4.diagnostics.patch_metrics import publish
for name, state in (("one", "active"), ("two", sys.argv[2])):
    patching.declare._outcomes[name] = patching.Outcome(name, "SWITCH", "does", state)
publish(sys.argv[1], {"model_name": "m", "version": "of their own"})
"""
COLLECT = """
from prometheus_client import CollectorRegistry, generate_latest, multiprocess
registry = CollectorRegistry()
multiprocess.MultiProcessCollector(registry)
print(generate_latest(registry).decode())
"""


def test_processes_share_one_sample(tmp_path: Path) -> None:
    environ = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}

    def python(program: str, *arguments: str) -> str:
        return subprocess.run([sys.executable, "-c", program, *arguments], env=environ, capture_output=True, text=True, check=True).stdout

    for process, state in (("scheduler", "failed"), ("scheduler", "failed"), ("frontend", "declined")):
        python(PUBLISH, process, state)
    found = sorted(line for line in python(COLLECT).splitlines() if line.startswith(patch_metrics.NAME))

    def sample(patch: str, process: str, state: str, value: float) -> str:
        return f'{patch_metrics.NAME}{{model_name="m",patch="{patch}",process="{process}",state="{state}",version="{__version__}"}} {value}'

    assert found == [
        sample("one", "frontend", "active", 1.0),
        sample("one", "scheduler", "active", 1.0),
        sample("two", "frontend", "declined", 0.0),
        sample("two", "scheduler", "failed", 0.0),
    ]


COUNT = """
from sglang_gemma4.diagnostics import pool_hits
pool_hits.publish({"model_name": "m"})
pool_hits.HITS.prompt, pool_hits.HITS.hit = 100, 40
pool_hits.export()
pool_hits.HITS.prompt += 10
pool_hits.export()
pool_hits.export()
"""


def test_counters_are_exported_as_0_and_grow_by_what_was_added(tmp_path: Path) -> None:
    environ = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    for program in (COUNT, COLLECT):
        said = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=True).stdout
    found = {line.split("{")[0]: float(line.split()[-1]) for line in said.splitlines() if line and not line.startswith("#")}
    grown = {f"{pool_hits.PREFIX}prompt_tokens_total": 110.0, f"{pool_hits.PREFIX}hit_tokens_total": 40.0}
    assert found == dict.fromkeys(pool_hits.COUNTERS, 0.0) | grown
