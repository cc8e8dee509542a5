"""Run the clients' scripts, each in an environment of its own, and print what works as a table."""

import contextlib
import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

from tests.clients.rows import FEATURES

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENTS = Path(sys.prefix) / "clients"
"""The environments lie in the one that runs the tests, and are removed with it."""
DOCS = ROOT / "docs" / "clients.md"
LONGEST = 1800  # seconds of one client
Result = dict[str, str]
RUNNING: set[int] = set()
"""Process groups of scripts that run."""
COUNTS = "prometheus"
"""The client whose numbers hold only where nobody else asks."""

CLIENTS: Mapping[str, tuple[str, ...]] = {
    "openai": ("openai==3.57.0",),
    "anthropic": ("anthropic==2.14.0",),
    "litellm": ("litellm==1.110.2",),
    "instructor": ("instructor==1.17.0",),
    "pydantic_ai": ("pydantic-ai-slim[openai]==2.68.0",),
    "agents": ("openai-agents==0.24.0",),
    "langchain": ("langchain-openai==1.7.4",),
    "ollama": ("ollama==0.6.3",),
    "lm_eval": ("lm-eval[api]==0.4.13", "transformers"),
    "guidellm": ("guidellm==0.8.1", "torch=={torch}"),  # SGLang's torch: the newest would be another 5 GB
    "prometheus": ("prometheus-client==0.26.0",),
    "bench_serving": (),
}
"""By the name of the script: what its environment needs. SGLang's own load generator runs in the server's."""


@cache
def environment(name: str) -> Path:
    """The Python of a client's environment, which is made where it is missing or holds other versions.

    Raises:
        RuntimeError: the packages cannot be installed; the message is the installer's.
    """
    if not CLIENTS[name]:
        return Path(sys.executable)
    wanted = [package.format(torch=importlib.metadata.version("torch")) if "{" in package else package for package in CLIENTS[name]]
    folder = ENVIRONMENTS / name
    python, stamp = folder / "bin" / "python", folder / "holds"
    if stamp.exists() and stamp.read_text().splitlines() == wanted:
        return python
    venv.create(folder, clear=True)
    command = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", str(python), *wanted]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{name}: {' '.join(wanted)} cannot be installed: {done.stderr.strip()}")
    stamp.write_text("\n".join(wanted))
    return python


def results(name: str, url: str, features: Iterable[str] = ()) -> list[Result]:
    """What a client's script says of the server at ``url``: a line for each endpoint and feature.

    Raises:
        RuntimeError: the script ended without a line for each; the message has its last words.
    """
    command = [str(environment(name)), "-m", f"tests.clients.with_{name}", url, *features]
    alone = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    status, out, err = ended(command, LONGEST, cwd=ROOT, env=alone)
    lines = [json.loads(line) for line in out.splitlines() if line.startswith('{"client"')]
    if status or not lines:
        raise RuntimeError(f"{' '.join(command[1:])}: status {status}\n{err[-2000:]}")
    return lines


def ended(command: Sequence[str], seconds: float, **more: Any) -> tuple[int, str, str]:
    """Run a command to its end: its status and what it wrote. All that it started is killed then.

    Raises:
        subprocess.TimeoutExpired: the command has not ended within ``seconds``.
    """
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:  # a pipe would stay open in what the command started
        process = subprocess.Popen(command, stdout=out, stderr=err, text=True, start_new_session=True, **more)
        RUNNING.add(process.pid)
        try:
            process.wait(seconds)
        finally:
            RUNNING.discard(process.pid)
            _kill(process.pid)
            process.wait()
        out.seek(0)
        err.seek(0)
        return process.returncode, out.read(), err.read()


def _kill(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def differences(told: Iterable[Result], documented: Sequence[str]) -> tuple[list[str], list[str]]:
    """What is not as the lines of docs/clients.md say, and what they mark with `?`, which may be anything."""
    rows = [[word.strip() for word in line.strip("|").split("|")] for line in documented if line.startswith("| ")]
    said = {tuple(row[:3]): dict(zip(FEATURES, row[3:], strict=True)) for row in rows if len(row) == 3 + len(FEATURES)}
    different, unmeasured = [], []
    for one in told:
        expected = said.get((one["client"], one["version"], f"`{one['endpoint']}`"), {}).get(one["feature"])
        place = f"{one['client']} {one['version']}, {one['endpoint']}, {one['feature']}: {one['verdict']} {one['said']}".rstrip()
        if expected == "?":
            unmeasured.append(place)
        elif one["verdict"] == "wrong" or one["verdict"] != expected or not set(reasons([one])) <= set(documented):
            different.append(f"{place}; docs/clients.md says {expected}")
    return different, unmeasured


def table(told: Iterable[Result]) -> list[str]:
    """The rows of the table in markdown, one for each client and endpoint; a refusal or a fault is a word, explained elsewhere."""
    rows: dict[tuple[str, str, str], dict[str, str]] = {}
    for one in told:
        rows.setdefault((one["client"], one["version"], one["endpoint"]), {})[one["feature"]] = one["verdict"]
    return [
        f"| {client} | {version} | `{endpoint}` | " + " | ".join(verdicts.get(feature, "-") for feature in FEATURES) + " |"
        for (client, version, endpoint), verdicts in rows.items()
    ]


def reasons(told: Iterable[Result]) -> list[str]:
    """A line for each refusal and each fault."""
    return [
        f"- {one['client']}, `{one['endpoint']}`, {one['feature']}: {one['verdict']}: {one['said']}"
        for one in told
        if one["verdict"] not in ("ok", "-")
    ]


def heading() -> list[str]:
    """The table's first two lines."""
    return ["| client | version | endpoint | " + " | ".join(FEATURES) + " |", "| --- " * (3 + len(FEATURES)) + "|"]


def write(told: Iterable[Result]) -> None:
    """Replace the table of docs/clients.md, and what is refused, by what was measured."""
    told = list(told)
    begin, end = "<!-- python -m tests.clients --write -->", "<!-- end -->"
    before, _, rest = DOCS.read_text().partition(begin)
    after = rest.partition(end)[2]
    said = [*heading(), *table(told), "", *(reasons(told) or ["Nothing is refused."])]
    DOCS.write_text("\n".join([before + begin, *said, end + after]))


def measured(names: Iterable[str], url: str, at_once: int = 4) -> list[Any]:
    """The results of several clients, ``at_once`` at a time, each printed as it ends; Prometheus last, as it compares counters."""
    names, told = list(names), {}

    def one(name: str) -> None:
        told[name] = results(name, url)
        print("\n".join([*table(told[name]), *reasons(told[name])]), flush=True)

    with ThreadPoolExecutor(at_once) as pool:
        try:
            list(pool.map(one, [name for name in names if name != COUNTS]))
        except BaseException:  # an interrupt reaches no other process group
            pool.shutdown(wait=False, cancel_futures=True)
            for group in tuple(RUNNING):
                _kill(group)
            raise
    if COUNTS in names:
        one(COUNTS)
    return [line for name in names for line in told[name]]
