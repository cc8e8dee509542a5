"""A measurement of starts that is told to end takes its server with it: one that lived on would hold the card's memory."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

PATIENCE = 400


def servers(folder: Path) -> list[psutil.Process]:
    """Whatever runs with the folder's caches."""
    found = []
    for process in psutil.process_iter():
        try:
            if str(folder) in process.environ().get("TRITON_CACHE_DIR", ""):
                found.append(process)
        except psutil.Error:
            continue
    return found


def until(answer: bool, folder: Path) -> bool:
    deadline = time.monotonic() + PATIENCE
    while bool(servers(folder)) is not answer and time.monotonic() < deadline:
        time.sleep(0.3)
    return bool(servers(folder)) is answer


def test_told_to_end_it_takes_its_server_along(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "sglang_gemma4.start.measure",
        str(tmp_path / "starts"),
        "--model",
        "tiny-e2b",
        "--arm",
        "package",
        "--cold",
    ]
    with (tmp_path / "log").open("w") as log:
        measuring = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        assert until(True, tmp_path), (tmp_path / "log").read_text()
        measuring.send_signal(signal.SIGTERM)
        assert measuring.wait(PATIENCE) != 0
        assert until(False, tmp_path)
    finally:
        measuring.kill()
        for left in servers(tmp_path):
            left.kill()
