"""Build SGLang's own CUDA modules that Gemma 4 needs, with nvcc in processes without a GPU, while weights load.

SGLang builds each module at its first use, while the caller waits. In a first start of 26B-A4B with MTP on an H100,
three builds of 10 to 16 s delayed the first prefill graph: KV rows of 4,096 and 2,048 bytes and gated activations.
The drafts' tree took 14 s in the first request (``runs/2026-11-25-26b-h100-step-kernels``). With 4-bit weights the
first verify graph was not captured after three minutes, since nvcc takes four for Marlin's module
(``runs/2026-11-25-26b-h100-int4``).

The start does not wait for the child. A process that needs a module takes SGLang's lock of that build, and finds the
module when the child is done with it. If the child died, the process builds the module itself: Linux releases a dead
process's lock, and an unfinished build is not published (its staging folder stays, unused). A compiler that outlives
the child holds no lock, since it was executed without the lock's file.
"""

import argparse
import contextlib
import json
import os
import re
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from sglang_gemma4.start import folder
from sglang_gemma4.start.child import Child, end_with
from sglang_gemma4.start.files_ahead import FilesAhead

KIND = "cuda-modules"
LONGEST_WAIT = 900.0
"""Seconds that an otherwise idle thread waits for the child, to log the outcome."""
DTYPES = (torch.bfloat16, torch.float16)
ONE_BYTE, TWO_BYTES = ("fp8_e4m3", "fp8_e5m2", "mxfp8"), ("bf16", "bfloat16")
"""``--kv-cache-dtype`` of pools whose rows SGLang's ``store_cache`` writes, fp8 as bytes
(``memory_pool._set_kv_buffer_impl``)."""
LONGEST_REASON = 300


def needed(rows: Iterable[int], dtype: torch.dtype, drafts: bool, marlin: bool = False) -> list[str]:
    """The modules that a model needs: ``kv:BYTES`` per size of a KV row, ``activation:DTYPE``, ``tree``, ``marlin:DTYPE``.

    Args:
        rows: bytes of a token's keys (or values) on a rank, by layer.
        drafts: adds ``tree``, for the tree of drafts.
        marlin: adds ``marlin:DTYPE``, for dense 4-bit weights that Marlin's GEMMs multiply. Marlin's experts are not
            added: they support silu only, and ``quantised_experts`` takes others.
    """
    name = str(dtype).removeprefix("torch.")
    more = [*(["tree"] if drafts else []), *([f"marlin:{name}"] if marlin else [])]
    return [*(f"kv:{size}" for size in sorted(set(rows))), f"activation:{name}", *more]


def element(kv_cache_dtype: str, dtype: torch.dtype, config: Mapping[str, Any]) -> int:
    """Bytes of an element of KV rows that SGLang's ``store_cache`` writes; 0 if others write them (FP4, this package).

    Args:
        kv_cache_dtype: as resolved; ``auto`` is the model's ``dtype`` unless the checkpoint's ``config`` has fp8.
    """
    if kv_cache_dtype == "auto":
        named = (config.get("quantization_config") or {}).get("kv_cache_quant_algo")
        return 1 if str(named).upper() == "FP8" else dtype.itemsize
    return 1 if kv_cache_dtype in ONE_BYTE else 2 if kv_cache_dtype in TWO_BYTES else 0


def has_four_bits(config: Mapping[str, Any]) -> bool:
    """Whether a checkpoint's config (``config.json``) has 4-bit weights: compressed-tensors', AWQ's or GPTQ's."""
    quantised = config.get("quantization_config") or {}
    quantised = quantised if isinstance(quantised, Mapping) else quantised.to_dict()
    if 4 in (quantised.get("bits"), quantised.get("w_bit")):
        return True
    weights = [group.get("weights") or {} for group in (quantised.get("config_groups") or {}).values()]
    return any(own.get("num_bits") == 4 and own.get("type") == "int" for own in weights)


class CudaModules(FilesAhead):
    """The building process of one start.

    Args:
        card: the GPU's name.
        capability: compute capability, ``(9, 0)`` for a Hopper.
        modules: from :func:`needed`.
    """

    held_up = False

    def __init__(self, card: str, capability: tuple[int, int], modules: Sequence[str]) -> None:
        self.capability, self.modules = capability, list(modules)
        where = [os.environ.get(name) for name in ("SGLANG_CACHE_DIR", "SGLANG_JIT_CACHE_DIR", "CUDA_HOME", "CUDA_PATH")]
        key = {"versions": folder.versions(), "modules": self.modules, "capability": capability, "folders": where}
        super().__init__(("SGLang's CUDA modules", "were"), KIND, card, key)

    def begin(self) -> bool:
        """Start building, unless what an earlier start built is still there; return whether a process was started.

        Raises:
            OSError: the process cannot be started.
        """
        if self.there():
            return False
        self.child = Child("sglang_gemma4.start.cuda_modules", *map(str, self.capability), *self.modules)
        return True

    def wait(self, seconds: float = LONGEST_WAIT) -> str | None:
        """Wait until the modules are built, ``seconds`` at most; return a log line, or None if nothing was started."""
        return super().wait(seconds)


def compiler() -> str | None:
    """The compiler that SGLang's builds run, or None where there is none."""
    from sglang.kernels.jit.utils.compile import toolchain

    path = toolchain.device_compiler_path()
    return path if os.access(path, os.X_OK) else None


@contextlib.contextmanager
def as_on_a_card(capability: tuple[int, int]) -> Any:
    """Inside, SGLang builds as if it saw a GPU of this compute capability: same flags, so the same place on disk."""
    from sglang.kernels.jit.utils import arch

    kept = arch.is_cuda
    arch.is_cuda = lambda: True
    try:
        with arch.override_jit_cuda_arch(*capability):
            yield
    finally:
        arch.is_cuda = kept


def build(module: str) -> list[str]:
    """Build one module into SGLang's cache, or find it there; return its files.

    SGLang's own functions do it, so sources and flags are SGLang's.

    Raises:
        RuntimeError: the build failed, with the compiler's words, or was not kept.
    """
    from sglang.kernels.jit.utils.compile import loader
    from sglang.kernels.ops.activation.activation import activation_module
    from sglang.kernels.ops.gemm.gptq_marlin import _jit_gptq_marlin_module
    from sglang.kernels.ops.kvcache.kvcache import _jit_kvcache_module
    from sglang.kernels.ops.speculative.tree import _jit_tree_module

    paths: list[str] = []
    load = loader._load

    def loaded(library: Any) -> Any:
        paths.append(str(library))
        return load(library)

    loader._load = loaded
    try:
        name, _, what = module.partition(":")
        match name:
            case "kv":
                _jit_kvcache_module(int(what), int(what), 0)
            case "activation":
                activation_module(getattr(torch, what))
            case "marlin":
                _jit_gptq_marlin_module(getattr(torch, what))
            case _:
                _jit_tree_module()
    finally:
        loader._load = load
    kept = [found for path in paths for found in _kept(Path(path))]
    if not kept:
        raise RuntimeError("SGLang built it and did not keep it")
    return kept


def _kept(library: Path) -> list[str]:
    """Where a library is that SGLang has loaded: ``library`` itself, or where its staging folder was moved to."""
    staged = library.parent.name.startswith(".staging-")
    return [str(found) for found in (library.parents[1].glob(f"deps-*/{library.name}") if staged else [library])]


def reason(error: Exception) -> str:
    """Why a build failed, in one line: the compiler's or linker's message, which follows the command repeated by ninja."""
    said = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    failed = next((place for place, line in enumerate(said) if line.startswith("FAILED: ")), None)
    words = said[failed + 2 :] if failed is not None else said
    worst = next((line for line in words if re.search(r"\b(error|fatal|cannot|Killed)\b", line)), words[0] if words else said[0])
    return f"{type(error).__name__}: {worst}"[:LONGEST_REASON]


def main(argv: Sequence[str] | None = None) -> int:
    """Build modules, each in a process of its own; one line of JSON on standard output."""
    parser = argparse.ArgumentParser(prog="python -m sglang_gemma4.start.cuda_modules", description=str(__doc__).partition("\n")[0])
    parser.add_argument("major", type=int, metavar="MAJOR", help="of the GPU's compute capability")
    parser.add_argument("minor", type=int, metavar="MINOR")
    parser.add_argument(
        "modules",
        nargs="+",
        metavar="MODULE",
        help="as the log of a start names them: kv:BYTES, activation:bfloat16, tree, marlin:bfloat16",
    )
    given = parser.parse_args(argv)
    os.nice(5)  # loading weights comes first
    out, sys.stdout = sys.stdout, sys.stderr
    began = time.monotonic()
    objects: set[str] = set()
    failed = []
    with as_on_a_card((given.major, given.minor)):
        from sglang.kernels.ops.kvcache import kvcache  # noqa: F401 - the workers inherit SGLang

        # If its pool died, a worker would wait for work forever, and hold open the pipe that the start reads.
        fork = get_context("fork")
        with ProcessPoolExecutor(len(given.modules), mp_context=fork, initializer=end_with, initargs=(os.getpid(),)) as pool:
            futures = [(module, pool.submit(build, module)) for module in given.modules]
            for module, future in futures:
                try:
                    objects.update(future.result())
                except Exception as error:
                    failed.append((module, reason(error)))
    # If one failed nothing is kept, so that the next start tries again.
    kept = [] if failed else sorted(objects)
    said = {"objects": kept, "done": len(given.modules) - len(failed), "failed": failed, "seconds": round(time.monotonic() - began, 1)}
    print(json.dumps(said), file=out)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
