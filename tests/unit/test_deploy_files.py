"""The files of docs/deploy: they parse, name flags, folders, metrics and probes that exist, and Prometheus's own tool accepts its part."""

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from sglang_gemma4 import SUPPORTED_SGLANG, __version__
from sglang_gemma4.diagnostics import dashboard, flag_table, patch_metrics, pool_hits
from sglang_gemma4.start import folder
from tests.unit.test_dashboard_queries import sglang_metrics

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "docs" / "deploy"
IMAGE = f"sglang-gemma4:{__version__}"


def parsed(name: str) -> Any:
    return yaml.safe_load((DEPLOY / name).read_text())


RULES = [rule for group in parsed("alerts.yml")["groups"] for rule in group["rules"]]
SERVICES: dict[str, Any] = parsed("compose.yaml")["services"]
OBJECTS = {(each["kind"], each["metadata"]["name"]): each for each in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())}
POD: dict[str, Any] = OBJECTS["Deployment", "gemma4"]["spec"]["template"]
(CONTAINER,) = POD["spec"]["containers"]


def dockerfile() -> dict[str, list[str]]:
    """The Dockerfile's instructions by name."""
    found: dict[str, list[str]] = {}
    for line in (DEPLOY / "Dockerfile").read_text().splitlines():
        name, _, rest = line.partition(" ")
        if name and name != "#":
            found.setdefault(name, []).append(rest)
    return found


def test_the_image_is_sglang_s_of_the_supported_version_and_copies_what_is_there() -> None:
    steps = dockerfile()
    assert steps["FROM"] == [f"lmsysorg/sglang:v{SUPPORTED_SGLANG}"]
    copied = [word for line in steps["COPY"] for word in line.split()[:-1]]
    assert [word for word in copied if not (ROOT / word).exists()] == []
    allowed = {line.removeprefix("!") for line in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines() if line.startswith("!")}
    assert allowed == set(copied)
    assert any("--no-deps" in line for line in steps["RUN"]), "pip leaves the image's SGLang alone"
    assert any("reason_against_version()" in line for line in steps["RUN"]), "another SGLang ends the build"


def flags() -> dict[str, list[str]]:
    """The server's flags in each file."""
    (start,) = dockerfile()["CMD"]
    return {
        "Dockerfile": re.findall(r'"(--[\w-]+)"', start),
        "kubernetes.yaml": [word.partition("=")[0] for word in CONTAINER["args"]],
        "compose.yaml": [word.partition("=")[0] for word in SERVICES["gemma4"]["command"]],
    }


def test_flags_exist_and_metrics_are_exported() -> None:
    known = {f"--{name.replace('_', '-')}" for group in flag_table.groups() for name in group.flags}
    for name, words in flags().items():
        assert [word for word in words if word not in known] == [], name
        assert {"--enable-metrics", "--host"} <= set(words), name


def sglang_source(name: str) -> str:
    (root,) = importlib.util.find_spec("sglang").submodule_search_locations  # type: ignore[union-attr, misc]
    return (Path(root) / "srt" / name).read_text()


def test_caches_are_on_volumes_and_shared_memory_is_enough() -> None:
    caches = {folder.DEFAULT.replace("~", "/root"), "/root/.cache/sglang", "/root/.cache/huggingface"}
    mounts = {each["mountPath"]: each["name"] for each in CONTAINER["volumeMounts"]}
    volumes = {each["name"]: each for each in POD["spec"]["volumes"]}
    assert set(mounts.values()) == set(volumes)
    assert volumes[mounts["/dev/shm"]]["emptyDir"]["medium"] == "Memory"
    claims = {each["persistentVolumeClaim"]["claimName"] for each in volumes.values() if "persistentVolumeClaim" in each}
    assert claims == {name for kind, name in OBJECTS if kind == "PersistentVolumeClaim"}
    named = dict(reversed(each.split(":")[:2]) for each in SERVICES["gemma4"]["volumes"])
    assert set(named.values()) == set(parsed("compose.yaml")["volumes"])
    for places in (mounts, named):
        assert [cache for cache in caches if not any(Path(cache).is_relative_to(place) for place in places)] == []
    assert SERVICES["gemma4"]["shm_size"] == "16gb"


def test_the_deployment_hangs_together() -> None:
    deployment, service = OBJECTS["Deployment", "gemma4"], OBJECTS["Service", "gemma4"]
    labels = POD["metadata"]["labels"].items()
    assert deployment["spec"]["selector"]["matchLabels"].items() <= labels
    assert service["spec"]["selector"].items() <= labels
    (port,) = CONTAINER["ports"]
    assert service["spec"]["ports"][0]["targetPort"] == port["name"]
    assert POD["metadata"]["annotations"]["prometheus.io/port"] == str(port["containerPort"])
    assert f"--port={port['containerPort']}" in CONTAINER["args"]
    assert CONTAINER["image"].endswith(f"/{IMAGE}")
    assert SERVICES["gemma4"]["image"] == IMAGE


def test_probes_ask_routes_that_exist_and_wait_long_enough() -> None:
    routes = re.findall(r'@app\.get\("(/\w+)"\)', sglang_source("entrypoints/http_server.py"))
    startup, ready, live = (CONTAINER[f"{name}Probe"] for name in ("startup", "readiness", "liveness"))
    for probe in (startup, ready, live):
        assert probe["httpGet"]["path"] in routes
        assert probe["httpGet"]["port"] == CONTAINER["ports"][0]["name"]
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 900
    (limit,) = re.findall(r'SGLANG_HEALTH_CHECK_TIMEOUT", (\d+)', sglang_source("entrypoints/http_server.py"))
    assert live["timeoutSeconds"] > int(limit), "/health itself waits so long before it says 503"
    assert POD["spec"]["terminationGracePeriodSeconds"] > int(CONTAINER["lifecycle"]["preStop"]["exec"]["command"][-1]) + 60
    (_, *check) = SERVICES["gemma4"]["healthcheck"]["test"]
    assert int(check[check.index("--max-time") + 1]) > int(limit)
    assert check[-1] == "http://127.0.0.1:30000/health"


def test_the_canary_is_the_same_server_without_the_package() -> None:
    package, stock = SERVICES["gemma4"], SERVICES["stock"]
    differ = {key for key in {*package, *stock} if package.get(key) != stock.get(key)}
    assert differ == {"environment", "ports", "deploy", "profiles"}
    assert stock["environment"] == {**package["environment"], "SGLANG_GEMMA4": "0"}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_reads_metrics_that_exist(rule: dict[str, Any]) -> None:
    known = {f"{name}_bucket" if kind == "Histogram" else name for name, kind in sglang_metrics().items()}
    known |= {patch_metrics.NAME, f"{patch_metrics.COMPILED}_total", *pool_hits.COUNTERS}
    expr = rule["expr"].replace("(full|swa)_token_usage", "full_token_usage")
    read = dashboard.metrics(expr)
    assert set(read) <= known
    assert read or expr == 'up{job="sglang"} == 0'
    assert expr.count("sglang[:_]") == len(re.findall(r"__name__=~", expr)), "each metric by either spelling"
    assert set(rule["annotations"]) == {"summary", "description"}
    assert rule["labels"]["severity"] in ("critical", "warning")


def test_every_alert_is_tested_to_fire_and_to_be_silent() -> None:
    order, canary, *wrong = parsed("alerts_test.yml")["tests"]
    names = {rule["alert"] for rule in RULES}
    for test in (order, canary):
        assert {each["alertname"] for each in test["alert_rule_test"]} == names
        assert not any("exp_alerts" in each for each in test["alert_rule_test"])
    for test in wrong:
        fired = {re.findall(r'"(\w+)"', each["labels"])[0] for each in test["promql_expr_test"][0]["exp_samples"]}
        assert fired == names


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed; Debian's package prometheus has it")
@pytest.mark.parametrize("command", ["check rules alerts.yml", "check config prometheus.yml", "test rules alerts_test.yml"])
def test_prometheus_accepts_rules_and_their_tests(command: str) -> None:
    done = subprocess.run(["promtool", *command.split()], cwd=DEPLOY, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SUCCESS" in done.stdout


def test_the_pages_name_every_file() -> None:
    page = (ROOT / "docs" / "deploying.md").read_text()
    assert [path.name for path in sorted(DEPLOY.iterdir()) if f"deploy/{path.name}" not in page] == []
