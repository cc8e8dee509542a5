"""The table of stages for a card, and the program that runs it: every command parses, resume, time limits, order."""

import os
import shlex
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from sglang_gemma4 import cli
from sglang_gemma4.benchmark import lora_times, records, vllm
from sglang_gemma4.benchmark.checked_plan import plan_of
from sglang_gemma4.benchmark.kernels import __main__ as kernels
from sglang_gemma4.benchmark.profile import SLACK_STEPS
from sglang_gemma4.benchmark.step_times import PROFILED_STEPS
from sglang_gemma4.cpu.environment import has_accelerator
from tests.gpu import drafter_engines, measure, pd_servers, session_stages, soak
from tests.gpu.stage_table import ALL, GROUPS, TABLE, named
from tests.gpu.stages import FLASH, Command, Stage
from tests.unit.test_bench_sessions import run_of

ROOT = Path(measure.__file__).parents[2]
COMMANDS = [(stage, command) for stage in ALL for command in (*stage.commands, *stage.dry)]


def test_names_are_one_stage_s_or_one_group_s() -> None:
    names = [stage.name for stage in ALL]
    assert len(set(names)) == len(names)
    assert not set(names) & set(GROUPS)
    assert all(set(members) <= set(names) and members for members in GROUPS.values())
    assert all(stage.decides for stage in ALL)
    assert all(stage.seconds <= 600 for stage in (*TABLE["stages"], *TABLE["curve_stages"]))
    assert named([]) == list(TABLE["stages"])
    assert named(["fp8-pair", "session_stages"]) == [stage for stage in ALL if stage.name == "fp8-pair" or stage in TABLE["session_stages"]]
    assert named(["tests", "steps"]) == [stage for stage in ALL if stage.name == "steps" or stage.name in GROUPS["tests"]]
    with pytest.raises(ValueError, match="no stage is called later-piece;"):
        named(["later-piece"])


def module_of(command: Command) -> str:
    return command[2] if command[1] == "-m" else ""


@pytest.mark.parametrize(("stage", "command"), COMMANDS, ids=[f"{stage.name}-{number}" for number, (stage, _) in enumerate(COMMANDS)])
def test_every_command_is_one_that_its_program_takes(stage: Stage, command: Command, tmp_path: Path) -> None:
    for part in parts(command):
        words = [word.replace("{out}", str(tmp_path)) for word in part]
        while words[0] == "env" or "=" in words[0]:  # variables of the command that follows
            words = words[1:]
        module = module_of(tuple(words))
        if module == "sglang_gemma4.cli" and words[3] == "bench":
            check_bench(words[3:], tmp_path)
        elif module == "sglang_gemma4.cli":
            cli._parser().parse_args(words[3:])
        elif module == "sglang_gemma4.benchmark.kernels":
            assert kernels.parser().parse_args(words[3:]).case
        elif module == "sglang_gemma4.benchmark.lora_times":
            lora_times.parser().parse_args(words[3:])
        elif module == "sglang_gemma4.start.measure":
            from sglang_gemma4.start import measure as start

            assert start.main([words[3], "--dry-run", *words[4:]]) == 0
        elif module == "tests.gpu.soak":
            assert soak.parser().parse_args(words[3:]).minutes > 0
        elif module == "tests.gpu.drafter_engines":
            assert set(drafter_engines.parser().parse_args(words[3:]).arms) <= set(drafter_engines.ARMS)
        elif module == "tests.gpu.pd_servers":
            asked = pd_servers.parser().parse_args(words[3 : words.index("--")])
            assert asked.prefill_tp <= asked.cards >= asked.decode_tp or not asked.cards
        elif module == "pytest":
            assert all((ROOT / word).exists() for word in words if word.startswith("tests/"))
        else:
            assert words[0] in ("bash", "rm", "!", "{python}") or words[0].startswith("SGLANG_GEMMA4_")
            assert all((ROOT / word).exists() for word in words if word.endswith((".sh", ".py")))


def parts(command: Command) -> list[list[str]]:
    """The commands in a line of the shell, or the one."""
    if command[:2] != ("bash", "-c"):
        return [list(command)]
    found: list[list[str]] = [[]]
    for word in shlex.split(command[2]):
        if word == "&&":
            found.append([])
        else:
            found[-1].append(word)
    return found


@pytest.fixture(autouse=True)
def found_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where stages run whose arms are vLLM's, there is one."""
    monkeypatch.setattr(vllm, "version", lambda arm, python: "0.33.0")


def check_bench(words: list[str], scratch: Path) -> None:
    """Up to the refusal to serve 26 billion random weights without a card, which comes last."""
    words, flags = words[: words.index("--")], words[words.index("--") + 1 :]
    asked = cli._parser().parse_args(words)
    asked.server_flags = flags
    if asked.dry_run or has_accelerator():
        plan_of(asked, scratch)
        return
    with pytest.raises(ValueError, match="there is no GPU here"):
        plan_of(asked, scratch)


PROFILED_TOKENS = (PROFILED_STEPS + SLACK_STEPS) * 4
"""What a profiled request may generate under MTP."""


def test_step_times_fit_the_pools_that_their_stage_asks_for() -> None:
    """Otherwise a pass is no batch of its size, which the card would be the first to say."""
    checked = 0
    for stage in ALL:
        for command in stage.commands:
            words = next((part for part in parts(command) if "--" in part and "bench" in part), [])
            if "--max-total-tokens" not in " ".join(words) or not {"--batches", "--profile"} & set(words):
                continue
            asked = cli._parser().parse_args(words[3 : words.index("--")])
            total = [int(word.partition("=")[2]) for word in words if word.startswith("--max-total-tokens=")][-1]  # the last one counts
            prompt, new = asked.step_tokens
            assert new <= 1000, f"{stage.name}: --step-tokens is IN,OUT, and {new} tokens a request take minutes a pass"
            for batch, tokens in ((max(asked.batches, default=0), new), (max(asked.profile, default=0), PROFILED_TOKENS)):
                assert batch * (prompt + tokens) <= total, f"{stage.name}: {batch} x ({prompt} + {tokens}) tokens in a pool of {total}"
            checked += 1
    assert checked > 5


def fake(name: str, script: str, seconds: int = 5, **more: Any) -> Stage:
    return Stage(name, seconds, "a test", (("bash", "-c", script),), **more)


def test_what_is_done_is_not_run_again_and_what_failed_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stages = [fake("good", "echo well >>{out}/ran"), fake("bad", "echo not well; exit 4"), fake("two", "true")]
    stages.append(Stage("pair", 5, "", (("true",), ("false",))))
    assert measure.Run(tmp_path, 60, dry=False).all(stages) == 1
    said = capsys.readouterr().out
    assert "bad: status 4 after" in said
    assert "    not well" in said
    assert "pair: status 0, 1 after" in said
    assert said.endswith("failed: bad pair\n")
    assert (tmp_path / "done").read_text().split() == ["good", "two"]
    measure.Run(tmp_path, 60, dry=False).all(stages)
    assert (tmp_path / "ran").read_text() == "well\n"


def test_a_stage_that_would_not_end_in_time_is_left_out_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stages = [fake("long", "touch {out}/long", seconds=100), fake("short", "touch {out}/short", seconds=10)]
    assert measure.Run(tmp_path, 50, dry=False).all(stages) == 3
    assert capsys.readouterr().out.endswith("left out: long\n")
    assert [path.name for path in tmp_path.iterdir() if path.name in ("long", "short")] == ["short"]


def test_a_stage_that_hangs_is_ended_with_all_it_started(tmp_path: Path) -> None:
    child = tmp_path / "child"
    for seconds in (1, 20, 100):  # on a machine that stands still the time may be over before the command has begun
        run = measure.Run(tmp_path, 200, dry=False)
        assert run.all([fake("hangs", "sleep 600 & echo $! >{out}/begun; mv {out}/begun {out}/child; wait", seconds=seconds)]) == 1
        if child.exists():
            break
    assert gone(int(child.read_text()))


def gone(pid: int) -> bool:
    """Whether a process ends within a minute."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.1)
    return False


def test_what_runs_ends_with_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = measure.Run(tmp_path, 60, dry=False)

    def interrupted(process: object, deadline: float) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(measure, "_ended", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run.all([fake("sleeps", "sleep 60")])
    assert [process.wait(30) for process in run.running] == [-15]


def test_a_run_that_is_told_to_end_tells_its_commands(tmp_path: Path) -> None:
    """What a command started in a session of its own ends where the command is asked to, not killed."""
    child = "trap 'kill $!; touch {out}/told' TERM; setsid sleep 60 & touch {out}/ready; wait"
    before = signal.getsignal(signal.SIGTERM)

    def stop() -> None:
        """Once the command listens: on a machine that stands still it may not have begun for seconds."""
        deadline = time.monotonic() + 60
        while not (tmp_path / "ready").exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop, daemon=True).start()
    with pytest.raises(SystemExit) as ended:
        measure.Run(tmp_path, 200, dry=False).all([fake("starts", child, seconds=100)])
    assert ended.value.code == 143
    assert (tmp_path / "told").exists()
    assert signal.getsignal(signal.SIGTERM) is before


def test_tests_share_the_card_and_what_is_timed_has_it_alone(tmp_path: Path) -> None:
    mark = "echo {0} begins >>{{out}}/order; sleep 1; echo {0} ends >>{{out}}/order"
    stages = [fake(name, mark.format(name), beside=True) for name in ("one", "other")]
    stages += [fake("alone", mark.format("alone")), fake("memory", mark.format("memory"), waits=True)]
    stages = [replace(stage, seconds=90) for stage in stages]  # a second's sleep takes eight on a machine that stands still meanwhile
    assert measure.Run(tmp_path, 600, dry=False).all(stages) == 0
    order = (tmp_path / "order").read_text().split("\n")
    assert {order[0], order[1]} in ({"one begins", "other begins"}, {"alone begins", "alone ends"})
    assert order.index("alone ends") == order.index("alone begins") + 1
    assert order[-3:-1] == ["memory begins", "memory ends"]


def test_passes_replace_a_stage_s_own_number(tmp_path: Path) -> None:
    (stage,) = named(["serve"])
    asked = {
        words[words.index("--repetitions") + 1]
        for passes in (None, 1)
        for words in measure.Run(tmp_path, 60, False, passes).commands(stage)
    }
    assert asked == {"2", "1"}


def test_a_dry_run_runs_dry_commands_only(tmp_path: Path) -> None:
    stages = [Stage("one", 5, "", (("false",),), dry=(("bash", "-c", "touch {out}/dry-ran"),)), fake("none", "touch {out}/real")]
    (tmp_path / "dry").mkdir()
    assert measure.Run(tmp_path, 200, dry=True).all(stages) == 0
    assert (tmp_path / "dry" / "dry-ran").exists()
    assert not (tmp_path / "real").exists()


def test_a_bench_says_how_its_arms_compare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "steps"
    folder.mkdir()
    records.append(folder / records.NAME, "header", arms=[{"name": name} for name in ("package", "on", "off", "same")], workloads=[])
    for arm, speed in (("package", 100.0), ("on", 110.0), ("off", 90.0), ("same", 100.0)):
        for number in range(5):
            values = {"batch": 8, "repetition": number, "counted": True, "output_throughput": speed + number / 10}
            records.append(folder / records.NAME, "step", arm=arm, round=0, **values)
    lines = [
        "on against package: faster (batch 8 1.100)",
        "off against package: slower (batch 8 0.900)",
        "same against package: no difference that can be told (batch 8 1.000?)",
    ]
    assert measure.verdicts(folder) == lines
    (folder / "package-server.log").write_text("FlashAttention-4 measured in 3 s, prefills no kind of layer\n")
    stage = Stage("steps", 5, "", (("true",),), locked=False, says=FLASH)
    measure.Run(tmp_path, 60, dry=False).one(stage)
    said = capsys.readouterr().out
    assert all(f"    {line}\n" in said for line in lines)
    assert "not the comparison that was meant" in said
    (folder / "package-server.log").write_text("FlashAttention-4 measured in 3 s, prefills full layers\n")
    measure.Run(tmp_path, 60, dry=False).one(stage)
    assert "not the comparison" not in capsys.readouterr().out


def test_the_list_and_wrong_words(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "done").write_text("steps\n")
    assert measure.main([str(tmp_path), "--list"]) == 0
    said = capsys.readouterr().out
    assert all(stage.name in said for stage in ALL)
    assert "done README: steps with and without MTP" in said
    total = sum(stage.seconds for stage in ALL)
    sums = [int(word) for line in said.splitlines() if " stages: " in line for word in line.split() if word.isdigit()]
    assert sums == [len(ALL), total - sums[2], sums[2]]
    for words, message in (
        ([], "name a FOLDER"),
        ([str(tmp_path), "nothing"], "no stage is called nothing"),
        ([str(tmp_path)], "need a GPU"),
    ):
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(SystemExit):
            measure.main(words)
        assert message in capsys.readouterr().err


def test_stages_of_curves_and_sessions_print_what_they_measured(tmp_path: Path) -> None:
    (curve,), (sessions,), (other,) = (named([name]) for name in ("step-curve", "sessions", "steps"))
    assert measure.report(curve, tmp_path) == ""
    run_of(tmp_path / "run")
    assert "sessions-50x10000/8@4" in measure.report(sessions, tmp_path / "run")
    assert measure.report(other, tmp_path / "run") == ""
    assert measure.report(curve, tmp_path / "run") == "", "a run without a curve"
    points = [[batch, 14, 10.0 + batch] for batch in range(4, 0, -1)]
    row = {"batch": 4, "counted": True, "input_tokens": 1000, "tokens_between": 40, "seconds": 2.0, "points": points, "accept_length": 2.8}
    for repetition in range(2):
        records.append(tmp_path / "run" / records.NAME, "curve", arm="package", round=0, repetition=repetition, **row)
    assert "| package | 3 to 4 |" in measure.report(curve, tmp_path / "run")


def test_stages_of_sessions_have_four_minutes_for_a_server_and_eight_for_three() -> None:
    arms = {"pool-hits": 3, "pool-hits-80gb": 3}
    for stage in session_stages.STAGES:
        (words,) = stage.commands
        assert words.count("--arm") == arms.get(stage.name, 1)
        assert stage.seconds == (480 if words.count("--arm") == 3 else 240)
        assert not stage.dry or not any("hicache" in word for word in words)
