"""Environment variables and launch arguments with which SGLang runs without a GPU.

``sglang-gemma4 serve`` starts ``python -m sglang.launch_server`` with :func:`launch_environment` and
:func:`default_arguments`; a process that builds an ``Engine`` itself calls :func:`prepare_this_process` first and
passes :func:`default_engine_arguments`. Arguments that the operator gave are not overridden.
"""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from sglang_gemma4.cpu import threads

STANDIN = Path(__file__).parent / "standin"
"""Folder that holds the stand-in ``sgl_kernel`` package."""

DEFAULTS: dict[str, str | int | float | bool] = {
    "device": "cpu",
    "dtype": "float32",  # the precision in which the engine equals transformers
    "attention-backend": "intel_amx",  # Gemma 4 accepts a fixed list of names; this is the CPU's
    "sampling-backend": "pytorch",
    "disable-overlap-schedule": True,  # its relay kernel is Triton only (kernels/ops/speculative/gather_spec_extras.py:100)
    "disable-cuda-graph": True,
    "lora-backend": "torch_native",  # the others are Triton
    "mem-fraction-static": 0.6,
    "max-total-tokens": 65536,  # small models would otherwise fill the machine's memory with KV pool
    "max-running-requests": 16,
    "chunked-prefill-size": 2048,
    "watchdog-timeout": 3600.0,  # seconds; one step of a real model can take minutes
}
"""Arguments of ``launch_server``; True means a flag without a value."""
_prepared = False


def launch_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """A copy of ``environ`` with what the CPU engine needs."""
    result = dict(environ)
    result["SGLANG_USE_CPU_ENGINE"] = "1"
    result["SGLANG_GEMMA4_CPU"] = "1"
    others = [path for path in environ.get("PYTHONPATH", "").split(os.pathsep) if path and path != str(STANDIN)]
    result["PYTHONPATH"] = os.pathsep.join([str(STANDIN), *others])
    if "OMP_NUM_THREADS" not in result:
        result["OMP_NUM_THREADS"] = str(threads.number())
    result.setdefault("CUDA_VISIBLE_DEVICES", "")
    result.setdefault("TORCHDYNAMO_DISABLE", "1")  # small sampling helpers; needs a C++ compiler and seconds, gains nothing
    return result


def has_accelerator() -> bool:
    """Whether torch finds an accelerator of any vendor."""
    import torch

    return bool(torch.accelerator.is_available())


def default_arguments(argv: Sequence[str]) -> list[str]:
    """The arguments to add to ``launch_server``'s ``argv``, which is not included."""
    given = _given(argv)
    added = []
    for name, value in DEFAULTS.items():
        if name not in given:
            added += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    return added


def default_engine_arguments(given: Mapping[str, object]) -> dict[str, object]:
    """``given`` keyword arguments of ``sglang.Engine``, completed with :data:`DEFAULTS`."""
    return {**{name.replace("-", "_"): value for name, value in DEFAULTS.items()}, **given}


def prepare_this_process() -> None:
    """Prepare this process before it imports SGLang.

    It may be called again, also in a fork of a prepared process that has imported SGLang since.

    Raises:
        RuntimeError: SGLang, which chooses its kernels at import, or a real ``sgl_kernel`` is already imported.
    """
    global _prepared
    for module in ("sgl_kernel",) if _prepared else ("sgl_kernel", "sglang.srt"):
        loaded = sys.modules.get(module)
        if loaded is not None and str(STANDIN) not in (getattr(loaded, "__file__", None) or ""):
            raise RuntimeError(f"{module} is already imported; prepare the CPU engine before anything imports SGLang")
    os.environ.update(launch_environment())
    if str(STANDIN) not in sys.path:
        sys.path.insert(0, str(STANDIN))
    _prepared = True


def _given(argv: Sequence[str]) -> set[str]:
    """Names of the options in ``argv`` and in the file of ``--config``, without leading dashes."""
    names = {word[2:].split("=", 1)[0] for word in argv if word.startswith("--")}
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config", nargs="?", type=Path)
    config = parser.parse_known_args(argv)[0].config
    if config and config.is_file():
        import yaml  # type: ignore[import-untyped]

        names |= set(map(str, yaml.safe_load(config.read_text()) or {}))
    return {name.replace("_", "-") for name in names}
