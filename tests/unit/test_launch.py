"""`serve` and quickstart: which flags they see and what they pass on."""

import subprocess
import sys
from pathlib import Path

import pytest

from sglang_gemma4.models.config_files import PreflightError
from sglang_gemma4.serving import launch
from sglang_gemma4.tiny import checkpoints

ROOT = Path(__file__).parents[2]


def test_fields_of_flags() -> None:
    found = launch.fields_of(["--model-path", "m", "--tp=2", "--skip-server-warmup", "--speculative-algorithm", "NEXTN"])
    assert found == {"model_path": "m", "tp": "2", "skip_server_warmup": True, "speculative_algorithm": "NEXTN"}


@pytest.mark.parametrize("flag", launch.DRAFT_FLAGS)
@pytest.mark.parametrize("joined", [True, False])
def test_shipped_names_become_directories_also_under_the_alias(flag: str, joined: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*call: object) -> None:
        raise RuntimeError(call)

    monkeypatch.setattr("os.execve", stop)
    name = "tiny-26b-a4b-assistant"
    flags = [f"{flag}={name}"] if joined else [flag, name]
    with pytest.raises(RuntimeError) as error:
        launch.serve("tiny-26b-a4b", ["--speculative-algorithm", "NEXTN", *flags])
    arguments = launch.fields_of(error.value.args[0][1])
    assert arguments["model_path"] == str(checkpoints.SHIPPED / "tiny-26b-a4b")
    assert arguments["speculative_draft_model_path"] == str(checkpoints.SHIPPED / name)


@pytest.mark.parametrize("switch", ["SGLANG_GEMMA4", "SGLANG_GEMMA4_PREFLIGHT"])
def test_the_switches_turn_the_checks_of_serve_off(switch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.execve", lambda *_: None)
    bad = ["--attention-backend", "flashinfer"]
    with pytest.raises(PreflightError):
        launch.serve("tiny-26b-a4b", bad)
    monkeypatch.setenv(switch, "0")
    launch.serve("tiny-26b-a4b", bad)


def test_quickstart_passes_server_flags_on() -> None:
    program = (
        "import sys, quickstart; "
        "print(quickstart.read_arguments(['--port', '3', '--log-level', 'info', '--tp', '2']));"
        "print(quickstart.read_arguments(['test', '-k', 'x']))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    serve, test = done.stdout.splitlines()
    assert "job='serve'" in serve
    assert serve.endswith("['--log-level', 'info', '--tp', '2'])")
    assert "job='test'" in test
    assert test.endswith("['-k', 'x'])")


CHILD = """
import signal
signal.signal(signal.SIGTERM, lambda *_: print("crashed", flush=True))
print("up", flush=True)
while True: signal.pause()
"""
SERVER = f"""
import os, signal, subprocess, sys
def end(*_):
    if sys.argv[1] == "ends":
        scheduler.kill(), scheduler.wait(), print("orderly", flush=True), os._exit(0)
signal.signal(signal.SIGTERM, end)
scheduler = subprocess.Popen([sys.executable, "-c", {CHILD!r}])
while True: signal.pause()
"""
"""A server with one child, which takes a signal to itself for a crash."""


@pytest.mark.parametrize(("behaves", "status", "said"), [("ends", 0, "orderly\n"), ("hangs", -9, "")])
def test_quickstart_asks_the_server_to_end_and_not_its_children(behaves: str, status: int, said: str) -> None:
    program = (
        f"import quickstart, subprocess, sys\nquickstart.DOWN_WITHIN = {1 if behaves == 'hangs' else 100}\n"
        f"server = subprocess.Popen([sys.executable, '-c', {SERVER!r}, {behaves!r}], start_new_session=True, stdout=subprocess.PIPE)\n"
        "assert server.stdout.readline() == b'up\\n'\n"
        "quickstart.stop(server)\nprint(server.returncode, server.stdout.read().decode(), end='')"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.stdout == f"{status} {said}", done.stderr
