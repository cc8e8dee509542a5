"""vLLM's OpenAI server as an arm, in its own environment, with the checkpoint, prompts and client of the SGLang arms.

Flags after ``--`` are written for SGLang. Those that mean the same to vLLM are translated, all others are refused, so
that every arm gets what a run asks of all arms. An arm's own flags are vLLM's and come last.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import sglang_gemma4
from sglang_gemma4.benchmark.arms import Arm
from sglang_gemma4.benchmark.server import Died, Server
from sglang_gemma4.benchmark.vllm_weights import FILLED
from sglang_gemma4.patching.switches import VLLM_PYTHON

FLAGS = {
    "max-running-requests": "max-num-seqs",
    "context-length": "max-model-len",
    "mem-fraction-static": "gpu-memory-utilization",
    "load-format": "load-format",
    "dtype": "dtype",
    "random-seed": "seed",
    "tp": "tensor-parallel-size",
    "tp-size": "tensor-parallel-size",
    "tensor-parallel-size": "tensor-parallel-size",
}
"""vLLM's name of each SGLang flag that means the same; ``--disable-radix-cache``, which has no value, is handled separately."""

ENVIRONMENT = {
    "VLLM_SERVER_DEV_MODE": "1",  # /reset_prefix_cache, with which a pass begins
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",  # it compiles at the start, and requests are greedy
}
_PLUGIN = "[vllm.general_plugins]\nsglang_gemma4_weights = sglang_gemma4.benchmark.vllm_weights:register\n"
_PLUGIN_FILES = (
    "__init__.py",
    "benchmark/__init__.py",
    "benchmark/vllm_weights.py",
    "tiny/__init__.py",
    "tiny/spread_weights.py",
    "tiny/spread_quantised.py",
    "tiny/families.*",
)

# The engine is a process of its own. When it ends, the API server says that it died "(above)" and usually ends too,
# but may stay.
_ENGINE_DIED = re.compile(rb"EngineDeadError|EngineCore (?:failed to start|encountered a fatal error)")
_CAUSE = re.compile(r"^\((?:EngineCore|Worker)[^)]*\) ERROR [^]]*\] ([\w.]*(?:Error|Exception|Interrupt)\b.*)")
ENDS_WITHIN = 20.0  # seconds that an API server may outlive its engine

_FIND = "import importlib.metadata, importlib.util; assert importlib.util.find_spec('vllm'); print(importlib.metadata.version('vllm'))"


class VllmServer(Server):
    """``python -m vllm.entrypoints.openai.api_server`` in its own process group."""

    engine = "vllm"

    def __init__(
        self, python: str, model: str, flags: Sequence[str], environment: Mapping[str, str], log: Path, scratch: Path | None, version: str
    ) -> None:
        """``flags`` are vLLM's. ``scratch`` is a folder for what random weights need, None with real ones."""
        self.flags, self.version, self.filled = flags, version, scratch is not None
        self._before = log.stat().st_size if log.exists() else 0  # bytes from earlier rounds
        self._engine_died: float | None = None  # when it was seen in the log
        own, path = {**ENVIRONMENT, **environment}, model
        if scratch:
            inherited = own.get("PYTHONPATH", os.environ.get("PYTHONPATH"))
            own["PYTHONPATH"] = os.pathsep.join(filter(None, (str(plugin(scratch / "vllm-plugin")), inherited)))
            path = str(text_only(Path(model), scratch / "vllm-model"))
        words = ["-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1", "--model", path, "--served-model-name", model]
        self._start([python, *words, *flags], own, log)

    def check(self) -> None:
        """Raise :class:`Died` if the process has ended, or has outlived its engine."""
        super().check()
        if self._engine_died is None and _ENGINE_DIED.search(self._log(65536)):
            self._engine_died = time.monotonic()
        if self._engine_died is not None and time.monotonic() - self._engine_died > ENDS_WITHIN:
            raise Died(None, self.last_words())

    def last_words(self) -> list[str]:
        """The log's last lines, followed by the engine's own error, which the API server's traceback hides."""
        found = [match[1] for line in self._log().decode(errors="replace").splitlines() if (match := _CAUSE.match(line))]
        return [*super().last_words(), *(f"vLLM's engine: {cause[:300]}" for cause in found[:1])]

    def describe(self) -> dict[str, Any]:
        """The server's flags, and its pool from ``/metrics``; vLLM has no ``/server_info`` with comparable settings, and no patches.

        Raises:
            Died: the plugin did not fill the weights; with vLLM's own filling, uniform ±1e-3, the comparison would be
                invalid.
        """
        from prometheus_client.parser import text_string_to_metric_families

        if self.filled and FILLED.encode() not in self._log():
            raise Died(
                None, [*self.last_words(), "vLLM did not load the plugin that fills random weights (Failed to load plugin, in its log)"]
            )
        flags = {name.replace("-", "_"): True if value is None else unplaced(value) for name, value in pairs(self.flags)}
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=30) as response:
            families = text_string_to_metric_families(response.read().decode())
        samples = (sample for family in families for sample in family.samples)
        labels: dict[str, str] = next((sample.labels for sample in samples if sample.name.startswith("vllm:cache_config_info")), {})
        pool = {f"cache.{name}": labels[name] for name in ("num_gpu_blocks", "block_size") if name in labels}
        return {"process": "vllm", "settings": {"engine": "vllm", "version": self.version, **flags, **pool}, "patches": {}}

    def _log(self, last: int = 1 << 26) -> bytes:
        """At most the ``last`` bytes of what this process wrote to its log."""
        with self.log.open("rb") as file:
            file.seek(max(self._before, self.log.stat().st_size - last))
            return file.read()


def flags_of_arm(shared: Sequence[str], own: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """vLLM's flags of an arm: the ``shared`` ones of all arms (SGLang's), then its ``own`` (vLLM's).

    A speculative arm gets the accept length that the SGLang arms simulate by the run's ``environment``.

    Raises:
        ValueError: a shared flag has no counterpart.
    """
    found = []
    for name, value in pairs(shared):
        if name == "disable-radix-cache" and value is None:
            found.append("--no-enable-prefix-caching")
        elif name in FLAGS and value is not None:
            found.append(f"--{FLAGS[name]}={value}")
        else:
            raise ValueError(
                f"--{name} is meant for every arm and has no known counterpart in vLLM; give it to the arms of SGLang alone "
                f"(--arm NAME:package,--{name}...), or use one of --{', --'.join(FLAGS)}, --disable-radix-cache"
            )
    if "--no-enable-prefix-caching" not in found:
        found.append("--enable-prefix-caching")  # SGLang's default
    length = environment.get("SGLANG_SIMULATE_ACC_LEN")
    for flag in own:
        name, _, value = flag.partition("=")
        if name == "--speculative-config" and length is not None:
            simulated = {"rejection_sample_method": "synthetic", "synthetic_acceptance_length": float(length)}
            flag = f"{name}={json.dumps({**json.loads(value), **simulated})}"
        found.append(flag)
    return found


def unplaced(value: str) -> str:
    """A flag's value, possibly JSON, with each local path cut to its last part: such paths do not belong in a committed run."""
    return re.sub(r'(?:(?<=")|^)/[^"]+', lambda path: Path(path[0]).name, value)


def pairs(flags: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """(name, value) of ``--name=value``, ``--name value`` and ``--name``."""
    words = list(flags)
    while words:
        name, equals, value = words.pop(0).removeprefix("--").partition("=")
        follows = not equals and bool(words) and not words[0].startswith("--")
        yield name, value if equals else words.pop(0) if follows else None


def python(asked: str | None) -> str:
    """The Python that has vLLM: ``--vllm-python``, the environment's, or this one."""
    return asked or os.environ.get(VLLM_PYTHON) or sys.executable


def version(arm: Arm, interpreter: str) -> str:
    """The vLLM version that ``arm`` will use.

    Raises:
        ValueError: there is no vLLM.
    """
    environment = {**os.environ, **arm.environment}
    try:
        done = subprocess.run([interpreter, "-c", _FIND], env=environment, capture_output=True, text=True, timeout=120, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        why = str(getattr(error, "stderr", None) or error).strip().splitlines()[-1]
        raise ValueError(
            f"arm {arm.name!r} needs vLLM, and {interpreter} has none ({why}); install it in an environment of its own and name that "
            f"Python with --vllm-python or {VLLM_PYTHON}, or add PYTHONPATH=... to the arm"
        ) from None
    return done.stdout.strip()


def plugin(folder: Path) -> Path:
    """Make a folder for ``PYTHONPATH`` that has vLLM fill ``--load-format dummy`` as the SGLang arms do (``vllm_weights``)."""
    information = folder / "sglang_gemma4_weights-0.dist-info"
    information.mkdir(parents=True, exist_ok=True)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang-gemma4-weights\nVersion: 0\n")
    (information / "entry_points.txt").write_text(_PLUGIN)
    package = Path(sglang_gemma4.__file__).parent
    for source in (found for pattern in _PLUGIN_FILES for found in package.glob(pattern)):  # without the rest of this environment
        target = folder / "sglang_gemma4" / source.relative_to(package)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
    return folder.resolve()


def text_only(model: Path, folder: Path) -> Path:
    """The language model of a config-only checkpoint as a separate checkpoint, which vLLM starts without image processing.

    Bidirectional attention within images is switched off, as there are none. The quantisation format of the whole
    checkpoint is kept.
    """
    shutil.copytree(model, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("processor_config.json"))
    config = json.loads((model / "config.json").read_text())
    text = {**config.get("text_config", config), "architectures": ["Gemma4ForCausalLM"], "use_bidirectional_attention": None}
    if "quantization_config" in config:
        text["quantization_config"] = config["quantization_config"]
    (folder / "config.json").write_text(json.dumps(text, indent=1))
    return folder.resolve()
