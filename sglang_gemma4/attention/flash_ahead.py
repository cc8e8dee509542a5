"""FlashAttention-4 for a model's layer shapes, compiled in a process without a GPU into SGLang's cache on disk, while weights load.

Its compiler needs no GPU, only its architecture's name. Tensors are PyTorch's fake ones; the call is the prefill's own, in each shape that
the choice at the start measures (``flash_choice``).
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import torch

from sglang_gemma4.attention import flash_choice
from sglang_gemma4.attention.flash_prefill import FlashPrefill, Kind
from sglang_gemma4.start import folder
from sglang_gemma4.start.child import Child
from sglang_gemma4.start.files_ahead import FilesAhead

KIND = "flash-kernels"
LONGEST_WAIT = 30.0
ARCHITECTURE, TARGET = "sm_90", "sm_90a"
"""SGLang's name for a Hopper's cache, and the compiler's target: Hopper's own instructions need the letter."""


class FlashAhead(FilesAhead):
    """The compiling process of one start.

    Args:
        card: the GPU's name.
        kinds: shapes of the model's attention layers, each once.
        dtype: the model's.
    """

    def __init__(self, card: str, kinds: Sequence[Kind], dtype: torch.dtype) -> None:
        self.kinds, self.dtype = sorted(kinds), str(dtype).removeprefix("torch.")
        where = [os.environ.get(name) for name in ("SGLANG_CACHE_DIR", "SGLANG_CUTE_AOT_CACHE_DIR")]  # of what an earlier start compiled
        key = {"versions": folder.versions(), "kinds": self.kinds, "dtype": self.dtype, "folders": where}
        super().__init__(("FlashAttention-4", "was"), KIND, card, key)

    def begin(self) -> bool:
        """Start compiling, unless the kernels of an earlier start are still there. Returns whether a process was
        started.

        It is not started either if the operator names an architecture for the compiler, or keeps none of its kernels
        on disk.

        Raises:
            OSError: the process cannot be started.
        """
        if os.environ.get("CUTE_DSL_ARCH") or os.environ.get("SGLANG_CUTE_AOT_CACHE_DIR", "default") == "" or self.there():
            return False
        target = {"FLASH_ATTENTION_ARCH": ARCHITECTURE, "CUTE_DSL_ARCH": TARGET}
        self.child = Child("sglang_gemma4.attention.flash_ahead", json.dumps(self.kinds), self.dtype, **target)
        return True

    def wait(self, seconds: float = LONGEST_WAIT) -> str | None:
        """Wait until the kernels are compiled; the capture after it needs them."""
        return super().wait(seconds)


def compile_kind(kind: Kind, dtype: torch.dtype) -> list[str]:
    """Compile for one shape in this process; returns the files of all kernels that it needs."""
    from sglang.kernels.jit import cute_aot_cache
    from sglang.kernels.ops.attention import flash_attention_v4
    from torch._subclasses.fake_tensor import FakeTensorMode

    cute_aot_cache._resolve_target_arch = lambda: ARCHITECTURE  # as in the server, which sees its GPU
    cache = cute_aot_cache.JITPersistentCache
    load, paths = cache._try_load_from_storage, set()

    def loaded(self: Any, key: Any) -> bool:
        paths.add(str(self.cache_path / f"{self._key_to_hash(key)}.o"))
        return bool(load(self, key))

    cache._try_load_from_storage = loaded
    flash = FlashPrefill(flash_attention_v4.flash_attn_varlen_func)
    with FakeTensorMode():
        for size, requests in [(2, 2), *flash_choice.shapes()]:
            q = torch.empty(size, kind.heads, kind.dim, dtype=dtype, device="cuda")
            k = torch.empty(size, kind.kv_heads, kind.dim, dtype=dtype, device="cuda")
            starts, none = (torch.empty(rows, dtype=torch.int32, device="cuda") for rows in (requests + 1, 0))
            out, longest = torch.empty_like(q), size // requests
            flash(q, k, k.clone(), k, k, starts, starts, none, kind.dim**-0.5, out=out, longest=longest, window=kind.window)
    return sorted(paths)


def main(argv: Sequence[str] | None = None) -> int:
    """Compile each shape in a process of its own; writes one line of JSON to standard output."""
    parser = argparse.ArgumentParser(prog="python -m sglang_gemma4.attention.flash_ahead", description=str(__doc__).partition("\n")[0])
    parser.add_argument("kinds", type=json.loads, metavar="JSON", help="[[query heads, KV heads, head dimension, window or -1], ...]")
    parser.add_argument("dtype", choices=("bfloat16", "float16"))
    given = parser.parse_args(argv)
    os.nice(5)  # loading weights comes first
    out, sys.stdout = sys.stdout, sys.stderr
    began = time.monotonic()
    from sglang.kernels.ops.attention import flash_attention_v4  # noqa: F401 - the workers have it then

    kinds, objects, failed = [Kind(*kind) for kind in given.kinds], set(), []
    with ProcessPoolExecutor(max(1, len(kinds)), mp_context=get_context("fork")) as pool:
        futures = [(kind, pool.submit(compile_kind, kind, getattr(torch, given.dtype))) for kind in kinds]
        for kind, future in futures:
            try:
                objects.update(future.result())
            except Exception as error:
                failed.append((str(kind), f"{type(error).__name__}: {error}"[:200]))
    print(json.dumps({"objects": sorted(objects), "failed": failed, "seconds": round(time.monotonic() - began, 1)}), file=out)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
