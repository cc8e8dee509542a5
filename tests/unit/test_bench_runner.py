"""What the runner makes of processes that do less than they were asked for."""

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_gemma4.benchmark import client, radix_cache, records, runner, step_times, workloads
from sglang_gemma4.benchmark.arms import Arm
from sglang_gemma4.benchmark.plan import START_ENGINE, Plan


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
    radix_cache.empty_radix_cache(engine)
    assert engine.refusals == -1
    with pytest.raises(ValueError, match="the radix cache cannot be emptied: the engine serves other requests"):
        radix_cache.empty_radix_cache(FinishesInWaves(False, refusals=10**6), seconds=0.2)


def test_tokens_that_the_server_never_generated_do_not_count() -> None:
    row = {"output_tokens": 1000, "output_throughput": 100.0, "seconds": 10.0}
    assert runner._generated(row, 1000.0) == {}
    assert runner._generated(row, None) == {}, "a server without that counter"
    assert runner._generated(row, 250.0) == {"output_tokens": 250, "output_throughput": 25.0, "missing_tokens": 750}


def test_a_workload_that_the_pool_cannot_hold_is_a_result_of_its_arm(tmp_path: Path) -> None:
    whole = plan(tmp_path)
    said: list[str] = []
    todo = [(workload, [0]) for workload in whole.workloads]
    left = runner._fitting(whole, whole.arms[0], 0, todo, {"max_total_num_tokens": 3000}, said.append)
    assert [workload.name for workload, _ in left] == ["chat"]
    (line,) = records.read(whole.raw)
    assert line["during"] == "summarize"
    assert "this server's KV pool holds 3000" in line["why"] == said[0]


def test_what_a_child_was_at_when_it_died() -> None:
    todo = [(1, -1), (1, 0), (8, -1)]
    order = {"todo": todo, "profile": [8]}
    start: records.Record = {"kind": "start"}
    steps: list[records.Record] = [{"kind": "step", "batch": batch, "repetition": number} for batch, number in todo]
    profile: records.Record = {"kind": "profile", "stage": "decode", "batch": 8}
    assert runner._broken(order, []) == START_ENGINE
    assert runner._broken(order, [start, *steps[:2]]) == "step batch 8"
    assert runner._broken(order, [start, *steps]) == "profile batch 8"
    assert runner._broken(order, [start, *steps, profile]) is None


def test_a_log_has_a_name_that_a_file_can_have(tmp_path: Path) -> None:
    arms = [Arm("ratio-0.15"), Arm("stock,--chat-template=/x/y.jinja")]
    assert [plan(tmp_path, *arms).log(arm, "-engine").name for arm in arms] == ["ratio-0.15-engine.log", "arm-1-engine.log"]


@pytest.mark.parametrize(("backend", "milliseconds"), [("sglang", 10.0), ("sglang-oai-chat", 2.5)])
def test_time_per_token_is_over_the_tokens_that_the_gaps_span(backend: str, milliseconds: float) -> None:
    result = {"backend": backend, "errors": [""], "ttfts": [0.5], "itls": [[0.01, 0.01]], "output_lens": [9], "duration": 1.0}
    result |= {"completed": 1, "total_output_tokens": 9, "output_throughput": 9.0, "input_throughput": 1.0}
    assert client.measured(result)["tpot_ms"] == [milliseconds]
