"""The hostile suite itself: a request follows from its seed and number, and the heartbeat sees what holds a loop by CPU time."""

import asyncio
import hashlib
import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from tests.hostile import heartbeat, report
from tests.hostile.exchange import Outcome, Request
from tests.hostile.odd_json import TEXT_CHANGES, VALUES
from tests.hostile.odd_schemas import SCHEMAS
from tests.hostile.plan import Plan
from tests.hostile.runner import Line, Result

OPENAPI = {"paths": {"/v1/completions": {"post": {}}, "/generate": {"post": {}}}, "components": {"schemas": {}}}


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    file = tmp_path / "openapi.json"
    file.write_text(json.dumps(OPENAPI))
    return Plan(file, 7, 300)


def test_a_request_follows_from_its_number(plan: Plan) -> None:
    own = [number for number in range(plan.total) if plan.is_own(number)]
    assert len(own) == 0.6 * plan.total
    first = [plan.request(number).wire("x") for number in own]
    assert first == [plan.request(number).wire("x") for number in own]
    assert plan.request(own[-1]).wire("x") == first[-1], "without the others"
    assert len({hashlib.sha1(wire.partition(b"\r\n\r\n")[2]).digest() for wire in first}) > 0.8 * len(first), "few are alike"


def test_two_of_five_are_schemathesis_s_and_each_operation_gets_its_share(plan: Plan) -> None:
    places = [plan.place(number) for number in range(plan.total) if not plan.is_own(number)]
    assert len(places) == len(set(places)) == 0.4 * plan.total
    assert {operation for (operation, _), _ in places} == set(range(len(plan.operations)))


def test_odd_values_are_json_and_schemas_stay_below_200_kb() -> None:
    assert all(json.dumps(value) for value in VALUES.values())
    assert max(len(json.dumps(make())) for make in SCHEMAS.values()) < 200_000
    assert all(isinstance(change(b'{"a": "Belm"}'), bytes) for change in TEXT_CHANGES.values())


def burn(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


async def holds_the_loop(seconds: float) -> None:
    heartbeat.NUMBER.set("41")
    burn(seconds)


def watched_steps(file: Path, *coroutines: Any) -> list[dict[str, Any]]:
    """What the heartbeat writes of these tasks."""

    async def main() -> None:
        heartbeat.Heartbeat(asyncio.get_running_loop(), file).start()
        for coroutine in coroutines:
            await asyncio.create_task(coroutine)
        await asyncio.sleep(0.1)

    asyncio.run(main())
    return [step for step in map(json.loads, file.read_text().splitlines()) if step["what"] != "wall"]


def test_the_heartbeat_names_what_holds_the_loop(tmp_path: Path) -> None:
    (step,) = watched_steps(tmp_path / "steps", holds_the_loop(0.2), asyncio.sleep(0.01))
    assert (step["what"], step["name"], step["number"]) == ("step", "holds_the_loop", "41")
    assert step["ms"] >= 200
    assert any(where.endswith(" burn") for where in step["where"])


async def waits(seconds: float) -> None:
    time.sleep(seconds)


def test_time_without_cpu_is_nobody_s_fault(tmp_path: Path) -> None:
    assert watched_steps(tmp_path / "steps", waits(0.3)) == []


async def a_callback(seconds: float) -> None:
    asyncio.get_running_loop().call_soon(burn, seconds)


def test_callbacks_outside_of_tasks_count_too(tmp_path: Path) -> None:
    (step,) = watched_steps(tmp_path / "steps", a_callback(0.2))
    assert step["what"] == "callbacks"
    assert step["ms"] >= 200


def line(status: int, *later: int, trouble: Any = "") -> Line:
    return Line(Request("x", "/generate", b"{}", number=3), Outcome(status, "said", 0.1, trouble, list(later)), 0)


LOG = "Traceback (most recent call last):\n  File \"/a/b/c.py\", line 5, in f\nKeyError: 'x'\n"
EMPTY = {"num_running_reqs": 0, "token_usage": 0.0, "flushed": "Cache flushed."}


def test_a_good_run_has_no_problems() -> None:
    result = Result([line(200), line(400)], memory=[{"server": 1000}, {"server": 1100}], pools=EMPTY)
    assert report.problems(result) == []


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"lines": [line(500)]}, r"status \[500\]: #3"),
        ({"lines": [line(200, 500)]}, r"status \[200, 500\]"),
        ({"lines": [line(0, trouble="cut")]}, "cut: #3"),
        ({"deaths": [{"after": 3, "in_flight": ["#3"], "log": LOG}]}, "KeyError: 'x' at b/c.py:5 f"),
        ({"hangs": [{"request": "#3"}]}, "hang"),
        ({"changed": [{"answer": "200 stop nonsense"}]}, "nonsense"),
        ({"steps": [{"what": "step", "ms": 240, "name": "f", "number": "3", "where": []}]}, "240 ms"),
        ({"memory": [{"server": 1000}, {"server": 1400}]}, "from 1000 to 1400 MB"),
        ({"pools": {**EMPTY, "token_usage": 0.1}}, "not empty"),
        ({"pools": {**EMPTY, "flushed": "busy"}}, "not empty"),
    ],
)  # fmt: skip
def test_what_a_run_must_not_show(wrong: dict[str, Any], said: str) -> None:
    problems = report.problems(Result(**{"pools": EMPTY, **wrong}))
    assert len(problems) == 1
    assert re.search(said, problems[0])
