"""The nursery, a fork server for engines: it imports SGLang once, then forks a process for each case that it reads from stdin.

A case is an engine or a script. Answers go to stdout, one JSON object a line: ``{"pid": …}`` when a case is forked, then ``{"groups": …}``,
``{"status": …}`` for a script, or ``{"error": …}``. The nursery starts no torch thread, so that forking is safe.

Placing the patches takes half of an engine's start. Engines of one environment are therefore forked from a *patched* process: a fork of the
nursery in which SGLang has loaded its plugins under that environment. It reads cases as the nursery does.
"""

import ctypes
import gc
import importlib
import json
import os
import pkgutil
import runpy
import signal
import sys
import tempfile
import time
import traceback
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

GREEDY = {"temperature": 0, "max_new_tokens": 12, "ignore_eos": True}
ENGINE = {
    "mem_fraction_static": 0.2,
    "max_total_tokens": 2048,
    "max_running_requests": 8,
    "skip_server_warmup": True,
    "random_seed": 0,
    "log_level": "info",
    "sleep_on_idle": True,  # a scheduler with nothing to do would check its pools without a pause, on one of two cores
}


def import_sglang() -> None:
    """Everything an engine process and its children import, with SGLang's start method turned to fork."""
    gc.disable()  # nearly all of what is imported stays: looking it through again and again is a second and more
    from sglang_gemma4.cpu.environment import prepare_this_process

    prepare_this_process()
    sys.path.append(str(Path(__file__).parents[2]))
    if os.environ.get("TRITON_INTERPRET") == "1":
        from tests.harness import quick_interpreter

        quick_interpreter.install(keep=True)
    if os.environ.get("TEST_REACH"):
        from tests.harness import reach

        reach.record_hooks()
        reach.record_kernels()
    import multiprocessing

    import torch

    torch.set_num_threads(1)
    # PyTorch renews its thread pool at a forked process's first use of it, and two threads at once there find none ("Invalid thread pool!",
    # of transformers' loading threads): each process renews it while it has one thread.
    os.register_at_fork(after_in_child=partial(torch.set_num_threads, 1))
    import sglang.srt.arg_groups.pipeline
    import sglang.srt.entrypoints.engine
    import sglang.srt.entrypoints.openai.serving_chat
    import sglang.srt.managers.detokenizer_manager
    import sglang.srt.managers.scheduler
    import sglang.srt.managers.tp_worker
    import sglang.srt.models.registry as registry
    import sglang.srt.multimodal.processors.gemma4
    import sglang.srt.server_args as server_args
    import sglang.srt.speculative.frozen_kv_mtp_worker_v2  # noqa: F401
    from sglang.srt.managers.multimodal_processor import import_processors

    from tests.harness import is_off, ports

    if not is_off("ports"):
        server_args.get_free_port_below_ephemeral = ports.free_port
    registry.ModelRegistry.get_supported_archs()
    import_processors("sglang.srt.multimodal.processors")  # the scheduler and the front end of each engine would
    import_what_a_checkpoint_needs()
    import_what_patches_change()
    set_method = multiprocessing.set_start_method
    multiprocessing.set_start_method = lambda method, force=False: set_method("fork", force=True)
    set_method("fork", force=True)
    gc.enable()
    gc.collect()  # else it is due in every engine, over all that was imported: half a second each


def import_what_a_checkpoint_needs() -> None:
    """Import the modules in which transformers looks for a checkpoint's processor: all that have one for videos."""
    from sglang.srt.utils.hf_transformers.processor import get_processor

    from sglang_gemma4.tiny import checkpoints

    get_processor(str(checkpoints.SHIPPED / "tiny-e2b"))


def import_what_patches_change() -> None:
    """Import the hooks' targets and values, which each engine would import, and find the holders of the targets."""
    from sglang.srt.plugins import GENERAL_PLUGINS_GROUP

    import sglang_gemma4.models.unified_config  # noqa: F401 - an entry that a patch makes imports it
    from sglang_gemma4.patches import load_all
    from sglang_gemma4.patching import hooks

    for plugin in metadata.entry_points(group=GENERAL_PLUGINS_GROUP):
        plugin.load()  # and not called
    hooks.look_ahead(hook for patch in load_all() for hook in patch.hooks)


def named(name: str, folder: str) -> Any:
    """Resolve ``module:function``: a module of ``tests/harness/FOLDER``, or one by its whole name."""
    return pkgutil.resolve_name(name if "." in name.partition(":")[0] else f"tests.harness.{folder}.{name}")


def serve_case(case: dict[str, Any]) -> dict[str, Any]:
    """Build the engine of a case, send its groups, return the outputs."""
    for instrument in os.environ.get("TEST_INSTRUMENTS", "").split():  # each "module:function"
        named(instrument, "instruments")()
    from sglang.srt.entrypoints.engine import Engine

    from sglang_gemma4.cpu.environment import default_engine_arguments

    arguments = default_engine_arguments({**ENGINE, **case["engine"]})
    # SGLang collects garbage as it sizes the pools: half a second over what was imported. Not in the nursery: the patches are in
    # place by the time the engine forks, and what places them asks the collector who refers to an original.
    os.register_at_fork(before=gc.freeze)
    started = time.monotonic()
    engine = Engine(model_path=case["model"], **arguments)
    print(f"HARNESS engine started in {time.monotonic() - started:.1f} s", flush=True)
    answers = []
    for group in case["groups"]:
        if group["flush"]:
            # An answer is out before its request has left the batch, and a cache in use is not flushed: wait for it.
            flushed = engine.loop.run_until_complete(engine.tokenizer_manager.flush_cache(timeout_s=30.0))
            assert flushed.success, flushed.message
        started = time.monotonic()
        client = named(group["client"], "engine_clients") if group["client"] else send
        answers.append(client(engine, group))
        tokens = sum(len(answer["token_ids"]) for answer in answers[-1])
        seconds = time.monotonic() - started
        print(f"HARNESS {tokens} tokens in {seconds:.2f} s, {tokens / seconds:.1f} tokens/s", flush=True)
    engine.shutdown()
    return {"groups": answers}


def send(engine: Any, group: dict[str, Any]) -> list[dict[str, Any]]:
    """One batch of requests."""
    prompts = group["prompts"]
    given = group["sampling"]
    sampling = [{**GREEDY, **one} for one in (given if isinstance(given, list) else [given] * len(prompts))]
    arguments: dict[str, Any] = {"sampling_params": sampling, "return_logprob": group["logprobs"]}
    if group["images"]:
        arguments["image_data"] = group["images"]
    arguments["prompt" if isinstance(prompts[0], str) else "input_ids"] = prompts
    return [
        {
            "token_ids": output["output_ids"],
            "text": output["text"],
            "logprobs": [entry[0] for entry in output["meta_info"].get("output_token_logprobs") or []],
            "meta_info": {key: value for key, value in output["meta_info"].items() if "logprobs" not in key},
        }
        for output in engine.generate(**arguments)
    ]


def run_script(case: dict[str, Any]) -> dict[str, Any]:
    """Run a script as ``python FILE`` would; engines that it starts are forked from this process (``crash_repro/engines.py``)."""
    sys.argv = [case["script"], *case["arguments"]]
    sys.path.insert(0, str(Path(case["script"]).parent))
    engines: Any = importlib.import_module("engines")
    engines.FORKED, engines.PLACED = True, not case["own_patches"]
    try:
        runpy.run_path(case["script"], run_name="__main__")
    except SystemExit as end:
        return {"status": end.code if isinstance(end.code, int) else int(end.code is not None)}
    return {"status": 0}


def run_forked(case: dict[str, Any], answers: int, placed: bytes) -> None:
    """The life of an engine process: its own process group, its own log, one answer. ``placed`` is what placing the patches printed."""
    os.setsid()
    log = os.open(case["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.write(log, placed)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.update(case["env"])
    try:
        answer = run_script(case) if "script" in case else serve_case(case)
    except BaseException:
        answer = {"error": traceback.format_exc()}
    sys.stdout.flush()
    os.write(answers, (json.dumps(answer) + "\n").encode())
    os._exit(0)


def fork_case(case: dict[str, Any], answers: int, placed: bytes = b"") -> None:
    """Fork a process for a case; its answers are passed on until it ends."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        os.set_inheritable(write, False)
        run_forked(case, write, placed)
    os.close(write)
    os.write(answers, (json.dumps({"pid": pid}) + "\n").encode())
    text = b""
    while not text.endswith(b"\n"):
        part = os.read(read, 1 << 16)
        if not part:
            break
        text += part
    os.close(read)
    if not text.endswith(b"\n"):
        text = b'{"error": "the engine process ended without an answer"}\n'
    os.write(answers, text)
    os.waitpid(pid, 0)


class Patched:
    """A process in which the patches are in place for one environment, forked from the nursery."""

    def __init__(self, environment: dict[str, str], answers: int) -> None:
        cases, self._cases = os.pipe()
        said, tell = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: it ends with the nursery
            os.close(said)
            _be_patched(environment, cases, tell, answers)
        os.close(cases)
        os.close(tell)
        self.is_ready = os.read(said, 1) == b"+"
        """False if the plugins ended the process: an engine then shows why."""
        os.close(said)

    def fork(self, case: dict[str, Any]) -> None:
        """Have it fork a case and answer. The nursery need not wait: the next case is read when this one is answered."""
        os.write(self._cases, (json.dumps(case) + "\n").encode())

    def end(self) -> None:
        """Send no more cases, and end the process. It would not see the end of its pipe, which processes forked later
        have open too."""
        os.close(self._cases)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def _be_patched(environment: dict[str, str], cases: int, tell: int, answers: int) -> None:
    """The life of a patched process."""
    try:
        with tempfile.TemporaryFile() as log:
            kept = os.dup(1), os.dup(2)
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
            os.environ.update(environment)
            from sglang.srt.plugins import load_plugins

            load_plugins()
            sys.stdout.flush()
            os.dup2(kept[0], 1)
            os.dup2(kept[1], 2)
            log.seek(0)
            placed = log.read()
        gc.freeze()  # the patches are in place: nothing asks the collector any more, and an engine need not walk what was imported
        os.write(tell, b"+")
        os.close(tell)
        with os.fdopen(cases) as lines:
            for line in lines:
                fork_case(json.loads(line), answers, placed)
    finally:
        os._exit(0)


AT_ONCE = 3
"""Patched processes that are kept. Each has 200 MB of its own, and both nurseries of two test processes have them."""


def of_patched(case: dict[str, Any]) -> dict[str, str] | None:
    """The environment under which the patches of a case are placed; None if the case places its own.

    A case with instruments does, because they wrap objects before the patches; a script may give its engines their
    own environments.
    """
    from tests.harness import is_off

    if case["own_patches"] or "TEST_INSTRUMENTS" in case["env"] or is_off("patched"):
        return None
    return {name: value for name, value in case["env"].items() if name != "PYTEST_CURRENT_TEST"}


def main() -> None:
    """Fork a process for each case; answer in order."""
    answers = os.dup(1)
    os.dup2(2, 1)  # SGLang prints
    started = time.monotonic()
    import_sglang()
    print(f"imports took {time.monotonic() - started:.1f} s", flush=True)
    patched: dict[str, Patched] = {}  # that of the last case last
    for line in sys.stdin:
        case = json.loads(line)
        environment = of_patched(case)
        if environment is None:
            fork_case(case, answers)
            continue
        key = json.dumps(environment, sort_keys=True)
        process = patched.pop(key, None) or Patched(environment, answers)
        if process.is_ready:
            patched[key] = process
            process.fork(case)
        else:
            process.end()
            fork_case(case, answers)
        if len(patched) > AT_ONCE:
            patched.pop(next(iter(patched))).end()


if __name__ == "__main__":
    sys.path.pop(0)  # this folder, whose modules are tests.harness's
    main()
