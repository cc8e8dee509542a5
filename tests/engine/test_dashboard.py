"""The dashboard against a real server: through a real Prometheus where one is installed, else against /metrics."""

import json
import math
import shutil
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from sglang_gemma4.diagnostics import dashboard, doctor, patch_metrics
from sglang_gemma4.patches import names
from tests.harness.live_server import Server
from tests.harness.ports import free_port

BOARD = dashboard.load()
QUERIES = list(dashboard.queries(BOARD))
ALERTS = Path(__file__).parents[2] / "docs" / "deploy" / "alerts.yml"
DRAFTED = 3
ROUNDS = 2  # rate() needs an increase between two scrapes: the first round creates the counters, the second raises them
WITHIN = 400
SPELLINGS = {
    spelling: {"source_labels": ["__name__"], "regex": "sglang[:_](.*)", "target_label": "__name__", "replacement": f"sglang{mark}$1"}
    for spelling, mark in (("colons", ":"), ("underscores", "_"))
}
"""What the names look like depends on the Prometheus; here each server is scraped as either would, as two instances."""
TOKENS = 150  # more verify steps in two answers than SGLang's log interval of 40


class Prometheus:
    """A running Prometheus that scrapes one server every two seconds."""

    def __init__(self, url: str) -> None:
        self.url = url

    def get(self, path: str, **parameters: str) -> Any:
        """The data of one answer of its HTTP API; a query that does not parse is an HTTPError."""
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}", timeout=30) as answer:
            return json.load(answer)["data"]

    def values(self, expr: str, **selected: str) -> list[float]:
        """The values of a panel's query, with the dashboard's variables set as Grafana would."""
        for name, value in {"model": ".*", "instance": ".*", "__rate_interval": "5m", **selected}.items():
            expr = expr.replace(f"${name}", value)
        return [float(sample["value"][1]) for sample in self.get("query", query=expr)["result"]]


def wait_for(what: str, happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WITHIN
    while not happened():
        assert time.monotonic() < deadline, f"{what} did not happen within {WITHIN} s"
        time.sleep(0.5)


def tell_stories(server: Server) -> None:
    """Two long answers, one of them streamed."""
    story = partial(server.ask, "Tell me a story about Anka.", max_tokens=TOKENS, extra_body={"ignore_eos": True})
    assert story().usage.completion_tokens == TOKENS
    assert len(list(story(stream=True))) > 2


@pytest.fixture(scope="module")
def prometheus(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus | None]:
    """Prometheus after it has seen the server at work; None, and the server has worked, where it is not installed."""
    binary = shutil.which("prometheus")
    if binary is None:
        tell_stories(server)
        yield None
        return
    folder, port = tmp_path_factory.mktemp("prometheus"), free_port()
    targets = [server.url.removeprefix("http://")]
    jobs = [
        {"job_name": name, "static_configs": [{"targets": targets, "labels": {"instance": name}}], "metric_relabel_configs": [rename]}
        for name, rename in SPELLINGS.items()
    ]
    every = {"scrape_interval": "2s", "evaluation_interval": "2s"}
    config = {"global": every, "rule_files": [str(ALERTS)], "scrape_configs": jobs}
    (folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
    flags = [f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data", f"--web.listen-address=127.0.0.1:{port}"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([binary, *flags], stdout=log, stderr=subprocess.STDOUT)
    running = Prometheus(f"http://127.0.0.1:{port}")

    def generated() -> float:
        assert process.poll() is None, f"prometheus ended:\n{(folder / 'log').read_text()[-2000:]}"
        try:
            return min(running.values('sum by (instance) ({__name__=~"sglang[:_]generation_tokens_total"})'), default=0)
        except OSError:  # not up yet
            return 0

    try:
        for _ in range(ROUNDS):
            least = generated() + 2 * TOKENS
            tell_stories(server)
            wait_for("a scrape after the requests", partial(lambda least: generated() >= least, least))
        yield running
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def exported(server: Server, prometheus: Prometheus | None) -> str:
    """The text of /metrics after the server has worked."""
    return dashboard.fetch(server.url)


def test_which_way_the_queries_run(prometheus: Prometheus | None, capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        if prometheus is None:
            print("\ndashboard: no prometheus on PATH; its queries are checked for metrics missing from the live /metrics only")
        else:
            version = prometheus.get("status/buildinfo")["version"]
            print(f"\ndashboard: its {len(QUERIES)} queries run in Prometheus {version} over the live server")


@pytest.mark.parametrize("query", QUERIES, ids=[f"{position} {query.panel}" for position, query in enumerate(QUERIES)])
def test_a_query_gives_numbers(query: dashboard.Query, prometheus: Prometheus | None, exported: str) -> None:
    absent = set(query.metrics) - dashboard.exported(exported)
    assert absent <= {"sglang:num_retracted_requests_total"}, "nothing was retracted, so only that counter may be absent"
    if prometheus is not None:
        for spelling in SPELLINGS:
            values = prometheus.values(query.expr, instance=spelling)
            assert values, f"no result with {spelling}"
            assert all(math.isfinite(value) for value in values)
        assert len(prometheus.values(query.expr)) in (len(values), 2 * len(values)), "one over all instances, or one for each"


def test_every_query_follows_the_variables(prometheus: Prometheus | None) -> None:
    if prometheus is None:
        return  # tests/unit/test_dashboard_queries.py reads the selectors; said by test_which_way_the_queries_run
    for query in QUERIES:
        for name in ("model", "instance"):
            assert prometheus.values(query.expr, **{name: "none such"}) == [], f"{query.panel} ignores ${name}: {query.expr}"


def test_alert_rules_read_a_live_server(prometheus: Prometheus | None, exported: str) -> None:
    """Every rule of docs/deploy is evaluated, reads what the server exports, and says that its patches are in place."""
    rules = [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]
    read = {name for rule in rules for name in dashboard.metrics(rule["expr"].replace("(full|swa)_", "full_"))}
    later = {"sglang:num_retracted_requests_total", "sglang:num_aborted_requests_total"}
    assert read - dashboard.exported(exported) <= later, "exported from the first retraction and the first abort on"
    if prometheus is not None:
        (group,) = prometheus.get("rules")["groups"]
        assert {rule["name"]: (rule["health"], rule.get("lastError")) for rule in group["rules"]} == {
            rule["alert"]: ("ok", None) for rule in rules
        }
        quiet = ("Gemma4ServerDown", "Gemma4ServerRestarts", "Gemma4PatchFailed", "Gemma4NotApplied", "Gemma4PoolFull")
        assert {rule["name"]: rule["state"] for rule in group["rules"] if rule["name"] in quiet} == dict.fromkeys(quiet, "inactive")


@pytest.mark.parametrize("path", ["/ready", "/health"])
def test_the_probes_of_docs_deploy_are_answered(server: Server, path: str) -> None:
    with urllib.request.urlopen(f"{server.url}{path}", timeout=60) as answer:
        assert answer.status == 200


def test_the_variables_find_the_server(server: Server, prometheus: Prometheus | None, exported: str) -> None:
    served = server.client.models.list().data[0].id
    for variable in BOARD["templating"]["list"][1:]:
        definition = variable["definition"].removeprefix("label_values(").removesuffix(")")
        selector, _, label = definition.rpartition(", ")
        assert set(dashboard.metrics(selector)) <= dashboard.exported(exported)
        if prometheus is not None:
            found = prometheus.get(f"label/{label}/values", **{"match[]": selector.replace("$model", ".*")})
            assert found == (sorted(SPELLINGS) if label == "instance" else [served])


def test_what_the_panels_show_is_plausible(prometheus: Prometheus | None, exported: str) -> None:
    lengths = [float(line.split()[-1]) for line in exported.splitlines() if line.startswith("sglang:spec_accept_length{")]
    if prometheus is not None:
        lengths += [value for query in QUERIES if query.panel == "Accept length" for value in prometheus.values(query.expr)]
        assert len(lengths) == 5, "one in the text; the last one and the mean of each instance"
        (failed,) = [prometheus.values(query.expr) for query in QUERIES if query.panel == "Failed patches"]
        assert failed == [0]
        (patches,) = [prometheus.values(query.expr) for query in QUERIES if query.panel == "Patches"]
        assert sum(patches) == 2 * 2 * len(names()), "of each instance every patch in one state, in the scheduler and in the front end"
    assert lengths
    assert all(1 < length <= DRAFTED + 1 for length in lengths), lengths


def test_the_gauge_says_what_doctor_says(server: Server, exported: str) -> None:
    (family,) = [family for family in text_string_to_metric_families(exported) if family.name == patch_metrics.NAME]
    samples = [sample.labels for sample in family.samples]
    assert len(samples) == 2 * len(names()), "one sample for each patch and process"
    assert all("pid" not in labels for labels in samples)
    data = doctor.live(server.url)
    for process in ("scheduler", "frontend"):
        states = {labels["patch"]: labels["state"] for labels in samples if labels["process"] == process}
        assert states == {row["name"]: row["state"] for row in data[process]}
    assert {labels["version"] for labels in samples} == {data["package"]}
    for sample in family.samples:
        assert sample.value == (sample.labels["state"] == "active")


def test_the_command_checks_a_live_server(server: Server, exported: str) -> None:
    command = [sys.executable, "-m", "sglang_gemma4.cli", "dashboard"]
    done = subprocess.run([*command, "--url", server.url], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    *late, total = done.stdout.splitlines()
    assert [line.split()[:2] for line in late] == [["later", "sglang:num_retracted_requests_total"]]
    assert "metrics are exported" in total
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert json.loads(printed) == BOARD
