"""A start that treats its processor as an H200, as far as compiling ahead goes:
``TEST_INSTRUMENTS=hopper_standin:install``.

Its list names a kernel and a file that do not exist, the process of FlashAttention-4 ends without an answer, and that
of CUDA modules answers that a build failed. This shows how a start handles each failure.
"""

import json
import os
from pathlib import Path
from typing import Any
from unittest import mock

import torch


def install() -> None:
    """In the scheduler's process, before the scheduler is made."""
    from sglang_gemma4.attention import flash_ahead, flash_prefill
    from sglang_gemma4.serving import compiling
    from sglang_gemma4.start import ahead, cuda_modules, folder
    from sglang_gemma4.start.child import Child

    entry = {"kernel": "nowhere:gone", "hash": "00" * 32}
    folder.load = lambda kind, *_: {"versions": {}, "entries": [entry]} if kind == ahead.KIND else None  # type: ignore[assignment]
    flash_prefill.DTYPES, flash_prefill.HEAD_DIMS = (torch.float32,), (32, 64)
    vars(flash_ahead)["Child"] = lambda _module, *given, **_named: Child("this", *given)
    vars(cuda_modules)["Child"] = failing_build
    cuda_modules.DTYPES, cuda_modules.compiler = (torch.float32,), lambda: "nvcc"  # type: ignore[assignment]
    compiling._has_card = lambda: True
    for name in ("_begin_triton", "_begin_flash", "_begin_modules"):
        setattr(compiling, name, on_a_card(getattr(compiling, name)))


def failing_build(_module: str, *asked: str) -> Any:
    """A process that reports, as ``cuda_modules`` does, that the last module it was asked for did not compile."""
    from sglang_gemma4.start.child import Child

    print(f"asked for CUDA modules: {' '.join(asked)}", flush=True)
    said = {"objects": [], "done": len(asked) - 3, "failed": [[asked[-1], "RuntimeError: nvcc fatal: no such arch"]], "seconds": 1.0}
    answer = Path(os.environ["SGLANG_GEMMA4_CACHE_DIR"]) / "answer"
    answer.write_text(json.dumps(said))
    return Child("json.tool", "--compact", str(answer))


def on_a_card(begin: Any) -> Any:
    """``begin`` with a GPU that reports its name."""

    def begun(scheduler: Any) -> None:
        card: dict[str, Any] = {"get_device_name": lambda *_: "NVIDIA H200", "get_device_capability": lambda *_: (9, 0)}
        with mock.patch.multiple(torch.cuda, **card):
            begin(scheduler)

    return begun
