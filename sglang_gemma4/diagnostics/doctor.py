"""``sglang-gemma4 doctor``: the installation, the patches that apply, and the state of a live server. A failing probe does not end it."""

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial, reduce
from importlib.metadata import PackageNotFoundError, entry_points, version
from typing import Any

from sglang_gemma4 import SUPPORTED_SGLANG, __version__, patching, terminal
from sglang_gemma4.diagnostics import live as read_live
from sglang_gemma4.diagnostics import open_server, status, variables
from sglang_gemma4.patching import supported, switches
from sglang_gemma4.start import bytecode, kernels, table

DISTRIBUTIONS = ("sglang", "sglang-kernel", "torch", "triton", "transformers", "flashinfer-python")
PATCH_CHECK_SECONDS = 300
SHOWN_FILES = 4
MARK = "SGLANG_GEMMA4_STATES="


def installation() -> dict[str, Any]:
    """What is known within a second, without importing torch or SGLang; ``patches`` is empty."""
    data: dict[str, Any] = {
        "package": __version__,
        "python": f"{platform.python_version()} ({sys.executable})",
        "platform": platform.platform(),
        "distributions": {name: _probe(partial(_version, name)) for name in DISTRIBUTIONS},
        "supported_sglang": SUPPORTED_SGLANG,
        "sglang_files": _probe(supported.changed_files),
        "gpu": _probe(_gpus),
        "entry_point": _probe(_entry_point),
        "bytecode": _probe(bytecode.reason_against),
        "switches": {s.name: os.environ.get(s.name, f"unset ({int(s.default)})") for s in switches.SWITCHES.values()}
        | {name: os.environ[name] for name in switches.NO_SWITCHES if name in os.environ},
        "problems": _probe(variables.problems),
        "states": {},
        "patches": [],
    }
    return data | {"healthy": _healthy(data)}


def add_patches(data: dict[str, Any]) -> dict[str, Any]:
    """``installation`` plus the patches that a server would apply; takes some 20 s, since a separate process imports SGLang."""
    rows = _probe(patch_states)
    if isinstance(rows, list):
        rows = status.planned(rows)
    data = data | {"patches": rows, "states": status.counts(rows) if isinstance(rows, list) else {}}
    return data | {"healthy": _healthy(data)}


def _healthy(data: dict[str, Any]) -> bool:
    rows = data["patches"]
    return (
        data["distributions"]["sglang"] == SUPPORTED_SGLANG
        and data["entry_point"] == "installed"
        and data["problems"] == []
        and isinstance(rows, list)
        and all(row["state"] != "failed" for row in rows)
    )


def _probe(function: Callable[[], Any]) -> Any:
    try:
        return function()
    except Exception as error:  # a doctor must outlive any patient
        return f"error: {type(error).__name__}: {error}"


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _gpus() -> list[str]:
    if shutil.which("nvidia-smi") is None:
        return []
    command = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=20)
    return [line.strip() for line in found.stdout.splitlines() if line.strip()]


def _entry_point() -> str:
    names = [ep.name for ep in entry_points(group="sglang.srt.plugins") if ep.value == "sglang_gemma4.plugin:register"]
    if not names:
        return "not installed: SGLang will not load the package; run pip install in this environment"
    allowed = os.environ.get("SGLANG_PLUGINS", "")
    if allowed and names[0] not in [name.strip() for name in allowed.split(",")]:
        return f"SGLANG_PLUGINS={allowed} leaves {names[0]} out"
    return "installed"


def patch_states() -> list[dict[str, Any]]:
    """Apply the patches in a separate process, as a server would, and return their states.

    Raises:
        RuntimeError: SGLang does not import here; the message holds the last line it printed.
    """
    from sglang_gemma4.cpu.environment import has_accelerator, launch_environment
    from sglang_gemma4.patches import load_all

    environ = dict(os.environ)
    if not has_accelerator():
        environ = launch_environment(environ)
    if not any(patching.wanted(patch, environ) for patch in load_all()):
        return status.as_data(patching.apply(load_all(), environ))  # all off: SGLang need not be imported to say so
    program = (
        "import json; from sglang.srt.plugins import load_plugins; load_plugins();"
        "from sglang_gemma4.diagnostics import status;"
        f"print({MARK!r} + json.dumps(status.rows()))"
    )
    done = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, timeout=PATCH_CHECK_SECONDS)
    for line in done.stdout.splitlines():
        if line.startswith(MARK):
            rows: list[dict[str, Any]] = json.loads(line.removeprefix(MARK))
            return rows
    last = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
    raise RuntimeError(f"SGLang did not load the patches (exit status {done.returncode}): {last}")


def installation_text(data: dict[str, Any], limit: int | None = None) -> str:
    """``installation`` for a terminal of ``limit`` columns: versions, GPU, switches."""
    gpu, changed, problems = data["gpu"], data["sglang_files"], data["problems"]
    facts = [["python", data["python"]], ["platform", data["platform"]], *map(list, data["distributions"].items())]
    facts.append(["SGLang's files", _files(changed)])
    facts.append(["gpu", ", ".join(gpu) if isinstance(gpu, list) and gpu else gpu or "none: serve uses the CPU reference engine"])
    facts.append(["entry point", data["entry_point"]])
    if data["bytecode"]:
        facts.append(["slow starts", data["bytecode"]])
    lines = [f"sglang-gemma4 {data['package']} (supports SGLang {data['supported_sglang']})", *_indented(facts, limit), "switches"]
    lines += _indented([[name, value] for name, value in data["switches"].items()], limit)
    lines += [f"  PROBLEM {problem}" for problem in (problems if isinstance(problems, list) else [problems])]
    return "\n".join(lines)


def patches_text(data: dict[str, Any], limit: int | None = None) -> str:
    """The patches and the verdict, for a terminal of ``limit`` columns."""
    rows = data["patches"]
    if isinstance(rows, list) and rows:
        said = f"patches: {status.summary(rows)}. Which of them a server uses depends on its model, GPU and flags: doctor --url URL"
        lines = [*terminal.wrapped(said, limit, "  "), *(f"  {line}" for line in status.table(rows, limit and limit - 2))]
    else:
        lines = ["patches", *([] if isinstance(rows, list) else [f"  {rows}"])]
    return "\n".join([*lines, "healthy" if data["healthy"] else "NOT HEALTHY"])


def _indented(rows: list[list[str]], limit: int | None) -> list[str]:
    return [f"  {line}" for line in terminal.table((), rows, limit=limit and limit - 2)]


def _files(changed: Any) -> str:
    """The result of the check of the SGLang files that the patches change, for a terminal."""
    if not isinstance(changed, list):
        return str(changed)
    if not changed:
        return f"those that patches change are {SUPPORTED_SGLANG}'s"
    others = f", ... ({len(changed)} files)" if len(changed) > SHOWN_FILES else ""
    return f"not those of {SUPPORTED_SGLANG}: {', '.join(changed[:SHOWN_FILES])}{others}"


def live(url: str, api_key: str | None = None) -> dict[str, Any]:
    """The patch lists of a running server, from its /server_info; one list for the schedulers of all data-parallel replicas.

    Raises:
        ValueError: nothing answers there, it is not SGLang, or the package is not active in it.
    """
    base, text = read_live.address(url), read_live.read(url, "/server_info", api_key, "is it an SGLang server?")
    try:
        info = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{base}/server_info answers no JSON ({error}); is it an SGLang server?") from error
    replicas = [state["sglang_gemma4"] for state in info.get("internal_states") or () if state.get("sglang_gemma4")]
    if not replicas:
        raise ValueError(
            f"the SGLang {info.get('version')} server at {base} runs without sglang-gemma4, "
            f"or with {switches.MASTER}=0 or SGLANG_GEMMA4_REPORT=0"
        )
    known = ("version", "scheduler", "frontend", "states")
    ours, scheduler = replicas[0], reduce(status.merged, [each.get("scheduler", []) for each in replicas])
    patches = status.merged(scheduler, ours.get("frontend", []))
    parts = {name: part for name, part in ours.items() if name not in known}
    parts["compiled_while_serving"] = sum(each.get("compiled_while_serving") or 0 for each in replicas)
    return {
        "url": base,
        "sglang": info.get("version"),
        "model": info.get("model_path"),
        "package": ours.get("version"),
        "scheduler": scheduler,
        "frontend": ours.get("frontend", []),
        "states": status.counts(patches),
        "patches": patches,
        "parts": parts,
        "open": _open(info),
        "healthy": all(row["state"] != "failed" for row in patches),
    }


def _open(info: dict[str, Any]) -> str | None:
    """Why anyone can administer the server, or None; with several tokenizer processes --admin-api-key is not checked."""
    admin = bool(info.get("admin_api_key")) and info.get("tokenizer_worker_num", 1) == 1
    return open_server.reason_against(info.get("host"), info.get("port"), bool(info.get("api_key")), admin)


def live_text(data: dict[str, Any], limit: int | None = None) -> str:
    """``live`` for a terminal of ``limit`` columns: one state per patch for the whole server."""
    lines = [f"{data['url']}: sglang-gemma4 {data['package']} on SGLang {data['sglang']}, {data['model']}"]
    lines.append(f"patches: {status.summary(data['patches'])}")
    lines += [f"  {line}" for line in status.table(data["patches"], limit and limit - 2)]
    if start := data["parts"].get("start"):  # a live server may be older than this doctor
        lines += table.lines(start)
    if late := data["parts"].get("compiled_while_serving"):
        lines.append(f"WARNING {late} Triton kernels were compiled while requests waited; the log names the first {kernels.MOST_SAID}")
    if said := data.get("open"):
        lines.append(f"WARNING {said}")
    lines.append("healthy" if data["healthy"] else "NOT HEALTHY")
    return "\n".join(lines)
