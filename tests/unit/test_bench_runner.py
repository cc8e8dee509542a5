"""What the runner makes of processes that do less than they were asked for."""

import fcntl
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from sglang_gemma4.benchmark import client, machine, profile, records, runner, server_side, step_engine, step_times, workloads
from sglang_gemma4.benchmark.arms import Arm
from sglang_gemma4.benchmark.plan import Plan, task_of
from sglang_gemma4.benchmark.server import Died


def plan(folder: Path, *arms: Arm) -> Plan:
    return Plan("model", "model", arms or [Arm("stock")], folder, workloads=workloads.named(["chat", "summarize"]))


class FinishesInWaves:
    """An engine that holds half of a batch: SGLang's own time stamps, as they come out when the rest waits."""

    def __init__(self, waves: bool, refusals: int = 1) -> None:
        self.waves, self.refusals = waves, refusals

    def flush_cache(self) -> Any:
        self.refusals -= 1
        return SimpleNamespace(success=self.refusals < 0)

    def generate(self, input_ids: list[list[int]], **_: Any) -> list[dict[str, Any]]:
        now = time.time()
        late = [self.waves and position >= len(input_ids) // 2 for position in range(len(input_ids))]
        return [
            {
                "meta_info": {
                    "prefill_finished_time": now + (2 if second else 1),
                    "request_finished_ts": now + (3 if second or not self.waves else 1.9),
                    "completion_tokens": 11,
                    "cached_tokens": 0,
                },
                "output_ids": [1],
            }
            for second in late
        ]


def test_a_batch_that_ran_in_waves_has_no_step_time() -> None:
    prompts = [[1]] * 64
    assert step_times.measure(FinishesInWaves(False), prompts, 11)["output_throughput"] == pytest.approx(640 / 2, rel=0.01)
    with pytest.raises(RuntimeError, match="batch 64 did not run as one batch: 32 requests"):
        step_times.measure(FinishesInWaves(True), prompts, 11)


def test_a_cache_in_use_is_waited_for_and_never_measured() -> None:
    engine = FinishesInWaves(False, refusals=3)
    profile.empty_radix_cache(engine)
    assert engine.refusals == -1
    with pytest.raises(ValueError, match="the radix cache cannot be emptied: the engine serves other requests"):
        profile.empty_radix_cache(FinishesInWaves(False, refusals=10**6), seconds=0.2)


def test_tokens_that_the_server_never_generated_do_not_count() -> None:
    row = {"output_tokens": 1000, "output_throughput": 100.0, "seconds": 10.0}
    assert server_side.generated(row, 1000.0) == {}
    assert server_side.generated(row, None) == {}, "a server without that counter"
    assert server_side.generated(row, 250.0) == {"output_tokens": 250, "output_throughput": 25.0, "missing_tokens": 750}


def test_a_workload_that_the_pool_cannot_hold_is_a_result_of_its_arm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = plan(tmp_path, Arm("stock", arguments=("stock",)))
    said: list[str] = []
    monkeypatch.setattr(server_side, "Server", SideBySide)
    no_client: Any = None
    side = server_side.ServerSide(whole, whole.arms[0], {}, 0, whole.order("server", 0), no_client)
    side.drop_what_does_not_fit(3000, said.append)
    assert {task[1] for task in side.tasks} == {"chat"}
    (line,) = records.read(whole.raw)
    assert line["during"] == "summarize"
    assert "this server's KV pool holds 3000" in line["why"] == said[0]


class SideBySide:
    """Servers and a client that note what is asked of them; one dies at a given pass."""

    dies: ClassVar[tuple[str, str, int] | None] = None
    asked: ClassVar[list[Any]] = []

    def __init__(self, model: str, arguments: list[str], *_: Any, **__: Any) -> None:
        self.name, self.url, self.log = arguments[-1], "", Path()
        self.process = SimpleNamespace(pid=0)
        self.asked.append(("start", self.name))

    def wait_until_ready(self, *_: Any) -> float:
        return 1.0

    def describe(self) -> dict[str, Any]:
        return {"process": "server", "settings": {"max_total_num_tokens": 10**6}, "patches": {}}

    def stop(self) -> None:
        self.asked.append(("stop", self.name))


@pytest.fixture
def side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    def one_pass(side: server_side.ServerSide, task: Any, *_: Any) -> None:
        _, name, number = task
        SideBySide.asked.append((side.arm.name, name, number))
        if SideBySide.asked[-1] == SideBySide.dies:
            raise Died(9, ["its last words"])
        records.append(side.plan.raw, "repetition", arm=side.arm.name, round=0, workload=name, repetition=number, counted=number >= 0)

    idle = SimpleNamespace(prepare=lambda *_: None)
    monkeypatch.setattr(server_side, "Server", SideBySide)
    monkeypatch.setattr(client, "Client", lambda *_: idle)
    monkeypatch.setattr(server_side.ServerSide, "do", one_pass)
    monkeypatch.setattr(SideBySide, "asked", [])
    monkeypatch.setattr(SideBySide, "dies", None)
    arms = [Arm(name, arguments=(name,)) for name in ("a", "b")]
    chosen = workloads.named(["chat", "summarize"])
    return Plan("model", "model", arms, tmp_path, workloads=chosen, rounds=1, repetitions=2, together=2)


def test_servers_side_by_side_start_once_and_take_turns(side_by_side: Plan) -> None:
    assert runner.run(side_by_side, {}, None, None, lambda _: None)
    passes = [(arm, name, number) for name in ("chat", "summarize") for number in (-1, 0, 1) for arm in ("a", "b")]
    assert SideBySide.asked == [("start", "a"), ("start", "b"), *passes, ("stop", "b"), ("stop", "a")]
    assert runner.run(side_by_side, {}, None, None, lambda _: None)
    assert len(SideBySide.asked) == 4 + len(passes), "a finished run starts nothing"


def test_a_death_side_by_side_costs_only_its_own_workload(side_by_side: Plan) -> None:
    SideBySide.dies = ("b", "chat", 0)
    assert runner.run(side_by_side, {}, None, None, lambda _: None)
    lines = records.read(side_by_side.raw)
    counted = [(line["arm"], line["workload"], line["repetition"]) for line in lines if line["kind"] == "repetition" and line["counted"]]
    assert sorted(counted) == [("a", name, n) for name in ("chat", "summarize") for n in (0, 1)] + [("b", "summarize", n) for n in (0, 1)]
    assert [(line["arm"], line["during"]) for line in lines if line["kind"] == "crash"] == [("b", "chat")]
    assert SideBySide.asked.count(("start", "a")) == 2, "both start again after the death"


SERVING = """
import json, sys, time
DatasetRow = lambda *given: given
def get_tokenizer(name):
    raise AssertionError("a pass needs none")
check_chat_template = get_tokenizer
get_dataset = lambda *_: ["drawn"]
ASYNC_REQUEST_FUNCS, _BACKEND_API_PATHS = {}, {}
def cli_main():
    if "--output-file" not in sys.argv:
        return get_dataset()
    requests = get_dataset()
    seed = sys.argv[sys.argv.index("--seed") + 1]
    if seed == "3":
        sys.exit("no such server")
    if seed == "4":
        time.sleep(600)
    found = {"backend": "sglang", "errors": [""], "output_lens": [2], "ttfts": [0.5], "itls": [[0.1]], "duration": 1.0, "completed": 1}
    found |= {"total_output_tokens": 2, "output_throughput": 2.0, "input_throughput": 8.0}
    with open(sys.argv[sys.argv.index("--output-file") + 1], "w") as out:
        out.write(json.dumps(found))
    print("sent", json.dumps(requests))
"""
"""SGLang's client without SGLang: it keeps to the names that ``client_process`` uses; ``tests/engine/test_bench.py`` has the real one."""

PASSES = """
import json, sys
from pathlib import Path
from types import SimpleNamespace
from sglang_gemma4.benchmark import client, workloads
from sglang_gemma4.benchmark.server import Died
folder = Path(sys.argv[1])
client._tokens, client.GRACE = lambda _: (2, [7], None), 0.0
log = folder / "server.log"
alive = SimpleNamespace(engine="sglang", url="http://x", log=log, check=lambda: None, last_words=lambda: [])
def dead():
    raise Died(9, ["the server's last words"])
gone = SimpleNamespace(engine="sglang", url="http://x", log=log, check=dead)
def run(workload, server, seed, limit=60.0):
    try:
        return passes.run(workload, server, seed, limit, lambda _: None)
    except Died as death:
        return [death.exit_status, death.log_tail[-1:]]
if __name__ == "__main__":
    passes = client.Client(folder, {}, "model", None)
    text, images = workloads.Workload("text", 3, 2, 2), *workloads.WORKLOADS["images"]
    passes.prepare([(text, 1), (images, 1)])
    found = [run(text, alive, 1), run(images, alive, 1), run(text, alive, 3), run(text, gone, 4), run(text, alive, 4, 0.1)]
    print(json.dumps(found))
"""


def test_passes_run_in_processes_of_their_own(tmp_path: Path) -> None:
    package = tmp_path / "stub" / "sglang" / "benchmark"
    package.mkdir(parents=True)
    for file, text in (("../__init__.py", ""), ("__init__.py", ""), ("serving.py", SERVING)):
        (package / file).write_text(text)
    (tmp_path / "passes.py").write_text(PASSES)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "stub")}
    words = [sys.executable, str(tmp_path / "passes.py"), str(tmp_path)]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    text, images, refused, dead, slow = json.loads(done.stdout)
    assert (text["ttft_ms"], text["tpot_ms"], images["completed"]) == ([500.0], [100.0], 1)
    assert refused == [1, ["no such server"]], "the client's own end"
    assert (dead, slow) == ([9, ["the server's last words"]], [None, []])
    log = (tmp_path / "client.log").read_text()
    assert "sent [[[2, 7, 7], 3, 2], [[2, 7, 7], 3, 2]]" in log
    assert 'sent ["drawn"]' in log
    (package / "serving.py").write_text("import no_such_library")
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert "SGLang's benchmark client does not work here for model (exit status 1): ModuleNotFoundError" in done.stderr


STUB = """
import json, sys
order = json.load(open(sys.argv[1]))
who = {"arm": order["arm"], "round": order["round"]}
def write(kind, **more):
    with open(order["raw"], "a") as raw:
        raw.write(json.dumps({"kind": kind, **who, **more}) + "\\n")
write("start", seconds=1.0, process="engine")
for kind, batch, repetition in order["tasks"]:
    assert sys.stdin.readline()
    if [order["arm"], kind, batch, repetition] == DIES:
        sys.exit("its last words")
    if kind == "step":
        write("step", batch=batch, repetition=repetition, counted=repetition >= 0, step_ms=1.0, output_throughput=1.0)
    else:
        for stage in ("prefill", "decode"):
            write("profile", batch=batch, stage=stage, steps=1, kernels=[])
"""
"""A child that keeps to the protocol of ``step_times`` and has no engine; ``tests/engine/test_bench.py`` has one."""


def engines_side_by_side(folder: Path, monkeypatch: pytest.MonkeyPatch, dies: list[Any] | None) -> list[records.Record]:
    """The lines of a run of two arms at a time out of three, whose engines are stubs."""
    stub = folder / "stub.py"
    stub.write_text(STUB.replace("DIES", json.dumps(dies) if dies else "None"))
    start: Any = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda words, **more: start([words[0], str(stub), words[-1]], **more))
    arms = [Arm(name, arguments=(name,)) for name in "abc"]
    whole = Plan("model", "model", arms, folder, batches=[1, 8], profile=[8], rounds=1, repetitions=1, together=2)
    assert runner.run(whole, {}, None, None, lambda _: None)
    found = records.read(whole.raw)
    assert runner.run(whole, {}, None, None, lambda _: None)
    assert len(records.read(whole.raw)) == len(found) + 1, "a finished run starts nothing"
    return found


def tasks_of(lines: list[records.Record]) -> list[tuple[str, Any]]:
    return [(line["arm"], task) for line in lines if (task := task_of(line))]


ALL_TASKS = [("step", 1, -1), ("step", 1, 0), ("step", 8, -1), ("step", 8, 0), ("profile", 8, 0)]


def test_engines_side_by_side_start_once_and_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = engines_side_by_side(tmp_path, monkeypatch, None)
    assert tasks_of(lines) == [(arm, task) for task in ALL_TASKS for arm in "ab"] + [("c", task) for task in ALL_TASKS]
    assert sorted(line["arm"] for line in lines if line["kind"] == "start") == ["a", "b", "c"]


def test_an_engine_s_death_side_by_side_costs_only_its_own_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = engines_side_by_side(tmp_path, monkeypatch, ["b", "step", 8, -1])
    found = tasks_of(lines)
    assert {task for arm, task in found if arm == "a"} == set(ALL_TASKS)
    assert {task for arm, task in found if arm == "b"} == {("step", 1, -1), ("step", 1, 0), ("profile", 8, 0)}
    assert [(line["arm"], line["during"], line["exit_status"], line["log_tail"]) for line in lines if line["kind"] == "crash"] == [
        ("b", "step batch 8", 1, ["its last words"])
    ]


def test_an_engine_s_time_is_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start: Any = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda words, **more: start([words[0], "-c", "input(); input()"], **more))
    whole = Plan("model", "model", [Arm("a")], tmp_path, batches=[1], rounds=1, repetitions=1)
    said: list[str] = []
    assert not runner.run(whole, {}, None, 0.5, said.append)
    assert "the time limit is reached" in said[-1]


def test_a_pass_waits_for_the_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a test holds the lock the engine may start, and nothing is measured; the time limit ends the wait."""
    monkeypatch.setattr(step_engine, "PATIENCE", 5.0)
    lock = tmp_path / "card.lock"
    start: Any = subprocess.Popen
    (tmp_path / "stub.py").write_text(STUB.replace("DIES", "None"))
    monkeypatch.setattr(subprocess, "Popen", lambda words, **more: start([words[0], str(tmp_path / "stub.py"), words[-1]], **more))
    whole = Plan("model", "model", [Arm("a")], tmp_path, batches=[1], rounds=1, repetitions=1, card_lock=lock)
    said: list[str] = []
    late = [0.0]

    def say(line: str) -> None:
        """The limit passes once the wait was said, however long the stub took to start on a busy machine."""
        said.append(line)
        late[0] += 1000.0 * ("waiting for the GPU" in line)

    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + late[0], sleep=time.sleep)
    with lock.open("a") as held, monkeypatch.context() as patch:
        patch.setattr(step_engine, "time", clock)
        fcntl.flock(held, fcntl.LOCK_EX)
        assert not runner.run(whole, {}, None, 900.0, say)
    assert [line for line in said if "waiting for the GPU" in line]
    assert tasks_of(records.read(whole.raw)) == []
    assert runner.run(whole, {}, None, None, said.append)
    assert tasks_of(records.read(whole.raw)) == [("a", ("step", 1, -1)), ("a", ("step", 1, 0))]


def test_a_log_has_a_name_that_a_file_can_have(tmp_path: Path) -> None:
    arms = [Arm("ratio-0.15"), Arm("stock,--chat-template=/x/y.jinja")]
    assert [plan(tmp_path, *arms).log(arm, "-engine").name for arm in arms] == ["ratio-0.15-engine.log", "arm-1-engine.log"]


@pytest.mark.parametrize(("backend", "milliseconds"), [("sglang", 10.0), ("sglang-oai-chat", 2.5)])
def test_time_per_token_is_over_the_tokens_that_the_gaps_span(backend: str, milliseconds: float) -> None:
    result = {"backend": backend, "errors": [""], "ttfts": [0.5], "itls": [[0.01, 0.01]], "output_lens": [9], "duration": 1.0}
    result |= {"completed": 1, "total_output_tokens": 9, "output_throughput": 9.0, "input_throughput": 1.0}
    assert client.measured(result)["tpot_ms"] == [milliseconds]


def test_a_run_s_command_has_no_paths_of_the_machine() -> None:
    given = ["/data/models/gemma", "--out=/home/me/run", "vllm:vllm,mtp,PYTHONPATH=/a/b:/c,--x=1", "--arm", "mix,32x1000/200", "runs/here"]
    shown = ["gemma", "--out=run", "vllm:vllm,mtp,PYTHONPATH=(a path),--x=1", "--arm", "mix,32x1000/200", "runs/here"]
    assert [machine.without_paths(word) for word in given] == shown
