"""vLLM's OpenAI server as an arm: the same checkpoint, prompts and client as the SGLang arms, in an environment of its own.

Flags after ``--`` are written for SGLang and translated (``vllm_flags``). An arm's own flags are vLLM's and come last.
"""

import functools
import json
import os
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import sglang_gemma4
from sglang_gemma4.benchmark import vllm_flags
from sglang_gemma4.benchmark.arms import Arm
from sglang_gemma4.benchmark.plan import Plan
from sglang_gemma4.benchmark.server import Server
from sglang_gemma4.switches import VLLM_PYTHON

PROGRAM = "vllm.entrypoints.openai.api_server"
ENVIRONMENT = {
    "VLLM_SERVER_DEV_MODE": "1",  # /reset_prefix_cache, with which a pass begins
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",  # it compiles at the start, and requests are greedy
}
_PLUGIN = "[vllm.general_plugins]\nsglang_gemma4_weights = sglang_gemma4.benchmark.vllm_weights:register\n"
_PLUGIN_FILES = (
    "__init__.py",
    *(f"benchmark/{name}.py" for name in ("__init__", "vllm_weights")),
    *(f"tiny/{name}.py" for name in ("__init__", "spread_weights", "families")),
)
_FIND = "import importlib.metadata, importlib.util; assert importlib.util.find_spec('vllm'); print(importlib.metadata.version('vllm'))"


class VllmServer(Server):
    """``python -m vllm.entrypoints.openai.api_server`` in a process group of its own."""

    engine = "vllm"

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path, version: str) -> None:
        self.command, self.version = list(command), version
        self._start(command, environment, log)

    def settings(self) -> dict[str, Any]:
        """Its flags, and its pool as ``/metrics`` describes it; vLLM has no ``/server_info`` of comparable settings."""
        return {"engine": "vllm", "version": self.version, **_as_settings(self.command), **self._pool()}

    def patches(self) -> dict[str, str]:
        """None: these are SGLang's."""
        return {}

    def _pool(self) -> dict[str, Any]:
        from prometheus_client.parser import text_string_to_metric_families

        with urllib.request.urlopen(f"{self.url}/metrics", timeout=30) as response:
            families = text_string_to_metric_families(response.read().decode())
        for family in families:
            for sample in family.samples:
                if sample.name.startswith("vllm:cache_config_info"):
                    return {f"cache.{name}": sample.labels[name] for name in ("num_gpu_blocks", "block_size") if name in sample.labels}
        return {}


def start(plan: Plan, arm: Arm, environment: Mapping[str, str]) -> VllmServer:
    """The server of ``arm``; ``environment`` is the run's and the arm's."""
    scratch = plan.folder / "scratch"
    own = {**ENVIRONMENT, **environment}
    if plan.dummy_weights:
        paths = [str(plugin(scratch / "vllm-plugin")), *filter(None, [own.get("PYTHONPATH", os.environ.get("PYTHONPATH"))])]
        own["PYTHONPATH"] = os.pathsep.join(paths)
    model = text_only(Path(plan.model), scratch / "vllm-model") if plan.dummy_weights else plan.model
    return VllmServer([plan.vllm_python, *arguments(plan, arm, str(model))], own, plan.log(arm), plan.vllm_version)


def arguments(plan: Plan, arm: Arm, model: str) -> list[str]:
    """What Python is to run; the port is added when it is known.

    Raises:
        ValueError: a flag for all arms has no counterpart.
    """
    words = ["-m", PROGRAM, "--host", "127.0.0.1", "--model", model, "--served-model-name", plan.model]
    return [*words, *vllm_flags.of_arm(plan.arguments, arm.arguments, plan.environment)]


def _as_settings(command: Sequence[str]) -> dict[str, Any]:
    flags = command[command.index("--served-model-name") + 2 :]
    return {name.replace("-", "_"): True if value is None else value for name, value in vllm_flags.pairs(flags)}


def python(asked: str | None) -> str:
    """The Python that has vLLM: ``--vllm-python``, the environment's, or this one."""
    return asked or os.environ.get(VLLM_PYTHON) or sys.executable


@functools.cache
def _found(interpreter: str, path: str | None) -> tuple[str, str]:
    """vLLM's version, and why there is none."""
    environment = {**os.environ, **({} if path is None else {"PYTHONPATH": path})}
    try:
        done = subprocess.run([interpreter, "-c", _FIND], env=environment, capture_output=True, text=True, timeout=120)
    except (OSError, subprocess.TimeoutExpired) as error:
        return "", str(error)
    return (done.stdout.strip(), "") if not done.returncode else ("", (done.stderr.strip().splitlines() or ["no output"])[-1])


def version(arm: Arm, interpreter: str) -> str:
    """vLLM's version as ``arm`` will find it.

    Raises:
        ValueError: there is no vLLM.
    """
    found, why = _found(interpreter, arm.environment.get("PYTHONPATH"))
    if not found:
        raise ValueError(
            f"arm {arm.name!r} needs vLLM, and {interpreter} has none ({why}); install it in an environment of its own and name that "
            f"Python with --vllm-python or {VLLM_PYTHON}, or add PYTHONPATH=... to the arm"
        )
    return found


def plugin(folder: Path) -> Path:
    """A folder for ``PYTHONPATH`` that has vLLM fill ``--load-format dummy`` as the SGLang arms do (``vllm_weights``)."""
    information = folder / "sglang_gemma4_weights-0.dist-info"
    information.mkdir(parents=True, exist_ok=True)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang-gemma4-weights\nVersion: 0\n")
    (information / "entry_points.txt").write_text(_PLUGIN)
    package = Path(sglang_gemma4.__file__).parent
    for file in _PLUGIN_FILES:  # not the environment that they are installed in
        (folder / "sglang_gemma4" / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(package / file, folder / "sglang_gemma4" / file)
    return folder.resolve()


def text_only(model: Path, folder: Path) -> Path:
    """The language model of a config-only checkpoint as a checkpoint of its own, which vLLM starts without image processing.

    Attention within an image is both ways; there are none.
    """
    config = json.loads((model / "config.json").read_text())
    text = {**config.get("text_config", config), "architectures": ["Gemma4ForCausalLM"], "use_bidirectional_attention": None}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(text, indent=1))
    for file in model.iterdir():
        if file.is_file() and file.name not in ("config.json", "processor_config.json"):
            shutil.copyfile(file, folder / file.name)
    return folder.resolve()
