"""A thousand hostile requests on the server that all tests share, and a bystander beside them: nothing ends, stalls or changes."""

import urllib.request
from pathlib import Path

import pytest

from tests.harness.live_server import Server
from tests.hostile import report
from tests.hostile.plan import Plan
from tests.hostile.runner import Run

SEED = 56
REQUESTS, REQUESTS_OF_ALL = 1_000, 20_000
ANSWERED_WITHIN = 300
"""Seconds, on a machine that does other things too: no request asks for more than some hundred tokens."""


@pytest.mark.timeout(7_200)
def test_no_request_ends_or_stalls_the_server(server: Server, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    total = REQUESTS_OF_ALL if pytestconfig.getoption("--all") else REQUESTS
    openapi = tmp_path / "openapi.json"
    with urllib.request.urlopen(f"{server.url}/openapi.json", timeout=60) as answer:
        openapi.write_bytes(answer.read())
    result = Run(Plan(openapi, SEED, total), ANSWERED_WITHIN).go(server)
    report.write(result, tmp_path, "package", SEED, total)
    print(report.summary(result, "package", SEED, total))
    assert len(result.lines) == total
    assert not report.problems(result), "\n".join(report.problems(result))
