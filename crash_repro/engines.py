"""Engines of the CPU reference engine, each in a process of its own, so that a scheduler that dies takes no script with it.

A process is this file with a JSON argument, or a fork. ``SGLANG_GEMMA4=0`` in the environment gives stock SGLang,
``SGLANG_GEMMA4_<PATCH>=0`` the package without one patch. No GPU is needed.
"""

import ctypes
import json
import os
import pkgutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
FORKED = False
"""Whether this process has imported SGLang for its engines, which are then forked from it; the tests' nursery says so."""
PLACED = False
"""Whether its patches are in place too, for its environment; the tests' nursery says so."""
KERNELS_OFF = {
    **{
        f"SGLANG_GEMMA4_{name}": "0"
        for name in ("ATTENTION", "FLASH_PREFILL", "NORMS", "FEW_ROW_LINEAR", "DEPENDENT_LAUNCH", "DENSE_OVERLAP")
    },
    "SGLANG_GEMMA4_WITHOUT": "qkv_rope,kv_write,fresh_kv,draft_argmax,grouped_experts",
}
"""Our kernels that are on by default. Under Triton's interpreter a program takes milliseconds, and an engine with all of them minutes."""
MTP = {
    "disable_overlap_schedule": True,
    "speculative_algorithm": "NEXTN",
    "speculative_num_steps": 3,
    "speculative_num_draft_tokens": 4,
    "speculative_eagle_topk": 1,
}
"""Engine arguments of MTP; a machine without a GPU has the synchronous loop only."""


class EngineProcess:
    """:func:`serve` of a job in a process, and a process group, of its own; it ends when this process does.

    Attributes:
        log: what it has printed, one file for both streams.
    """

    def __init__(self, job: Mapping[str, Any], env: Mapping[str, str] | None = None) -> None:
        import psutil

        self.log = tempfile.NamedTemporaryFile("r", errors="replace")  # noqa: SIM115 - it lives as long as the process
        text, environment = json.dumps(job, default=str), {**os.environ, **(env or {})}
        with open(self.log.name, "w") as out:
            if FORKED:
                if PLACED and (env or job["prepare"]):
                    raise RuntimeError("an engine with an environment of its own, or prepared: its patches are not those that are in place")
                self.process = psutil.Process(_fork(text, environment, out.fileno()))
            else:
                command = [sys.executable, __file__, text]
                self.process = psutil.Popen(command, env=environment, stdout=out, stderr=out, start_new_session=True)

    def wait(self, seconds: float) -> bool:
        """Whether it has ended by then."""
        import psutil

        try:
            self.process.wait(seconds)
        except psutil.TimeoutExpired:
            return False
        return True

    def end(self) -> None:
        """Kill the group, which was started here."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(30)


def _fork(job: str, environment: Mapping[str, str], out: int) -> int:
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    os.setsid()
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.environ.update(environment)
    status = 1
    try:
        serve(json.loads(job))
        status = 0
    except BaseException:  # also SystemExit: it is this process that ends
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def ask(
    model: Path,
    client: str,
    extra: Any = None,
    env: Mapping[str, str] | None = None,
    prepare: str | None = None,
    time_limit: float = 300.0,
    **engine: Any,
) -> Any:
    """What ``client`` makes of an engine of the CPU reference engine with the arguments ``engine``; or its last error line, a text.

    Args:
        model: the checkpoint's folder.
        client: ``module:function``, a file beside this one; it is called with the engine and ``extra`` in the engine's process, and what
            it returns must go through JSON.
        extra: what ``client`` reads.
        env: more of the environment.
        prepare: ``module:function`` of this repository, called in the engine's process before there is an engine.
        time_limit: seconds after which the answer is that there was none.
    """
    job = {"model": str(model), "client": client, "extra": extra, "prepare": prepare, "engine": engine}
    process = EngineProcess(job, env)
    if not process.wait(time_limit):
        process.end()
        return f"no answer within {time_limit:.0f} s"
    lines = process.log.read().splitlines()
    for line in lines:
        if line.startswith("ANSWER "):
            return json.loads(line.removeprefix("ANSWER "))
    errors = [line for line in lines if "Error" in line.split(":")[0]]
    return errors[-1] if errors else "\n".join(["the engine's process ended without an answer:", *lines[-20:]])


def stock_but(*kept: str) -> dict[str, str]:
    """What a script adds to an engine's environment where stock cannot run on a CPU what the script is about.

    Where stock is asked for (``SGLANG_GEMMA4=0``) it is stock with so much repaired, else nothing.
    """
    if not _is_stock():
        return {}
    print(f"stock with {' and '.join(kept)}, without which it does not get there on a CPU")
    return _only(kept)


def package_with(*kept: str) -> dict[str, str]:
    """What a script adds that shows what these patches do by themselves: all others are left out. Nothing where stock is asked for."""
    return {} if _is_stock() else _only(kept)


def _is_stock() -> bool:
    from sglang_gemma4.patching import switches

    return not switches.is_on(switches.MASTER)


def _only(kept: tuple[str, ...]) -> dict[str, str]:
    from sglang_gemma4.patches import load_all
    from sglang_gemma4.patching import switches

    without = [patch.name for patch in load_all() if not patch.cpu_engine and patch.name not in kept]
    return {switches.MASTER: "1", switches.WITHOUT: ",".join(sorted(switches.names_left_out() | set(without)))}


def serve(job: Mapping[str, Any]) -> None:
    """Start the engine of a job, print its client's answer and end it."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: where the script is ended, its engine is
    sys.path[:0] = [str(HERE), str(HERE.parent)]
    engine = cpu_engine(job["prepare"], model_path=job["model"], **job["engine"])
    answer = pkgutil.resolve_name(job["client"])(engine, job["extra"])
    print("ANSWER " + json.dumps(answer), flush=True)
    engine.shutdown()


def cpu_engine(prepare: str | None = None, **options: Any) -> Any:
    """An ``Engine`` of the CPU reference engine; its processes are forked from this one, in which ``prepare`` was called."""
    from sglang_gemma4.cpu.environment import default_engine_arguments, prepare_this_process

    prepare_this_process()
    import multiprocessing

    import sglang.srt.managers.detokenizer_manager
    import sglang.srt.managers.scheduler  # noqa: F401

    if prepare:
        pkgutil.resolve_name(prepare)()
    from sglang.srt.entrypoints.engine import Engine  # which it may have replaced

    set_method = multiprocessing.set_start_method  # forked children need not import SGLang again
    multiprocessing.set_start_method = lambda method, force=False: set_method("fork", force=True)
    default = {"skip_tokenizer_init": True, "skip_server_warmup": True, "max_total_tokens": 2048, "mem_fraction_static": 0.5}
    default["sleep_on_idle"] = True  # else a scheduler with nothing to do takes a core
    return Engine(**default_engine_arguments({"log_level": "warning", **default, **options}))


if __name__ == "__main__":
    serve(json.loads(sys.argv[1]))
