"""Triton's kernels of this server are compiled while weights load, from the list of an earlier start."""

import threading
from collections.abc import Callable
from typing import Any

from sglang_gemma4 import uses
from sglang_gemma4.patching import Hook, Patch, decline, tell
from sglang_gemma4.start import times
from sglang_gemma4.start.ahead import Ahead, key_of

NAME = "compile_ahead"
SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
FLAGS = (
    *("tp_size", "dtype", "kv_cache_dtype", "quantization", "page_size", "enable_lora"),
    *("attention_backend", "prefill_attention_backend", "decode_attention_backend"),
    *("speculative_algorithm", "speculative_num_draft_tokens", "disaggregation_mode"),
)
_start: Ahead | None = None


def guarded(work: Callable[[], None]) -> None:
    """Whatever fails here costs a line, never the start."""
    try:
        work()
    except Exception as error:
        decline(NAME, f"{type(error).__name__}: {error}")


def begin(scheduler: Any) -> None:
    """Before ``Scheduler.init_model_worker``, which loads the weights: begin compiling, and listen to what Triton compiles here."""
    guarded(lambda: _begin(scheduler))


def _begin(scheduler: Any) -> None:
    import torch
    from sglang.srt.arg_groups.model_override_base import resolved_view
    from sglang.srt.runtime_context import get_parallel

    from sglang_gemma4.start import kernels, manifest

    global _start
    if not torch.cuda.is_available() or get_parallel().tp_rank != 0:
        return
    resolved, config = resolved_view(scheduler.server_args), scheduler.model_config.hf_config
    flags = {name: str(getattr(resolved, name, None)) for name in FLAGS}
    kernels.watch(manifest.record)
    _start = Ahead(torch.cuda.get_device_name(), key_of(str((config.architectures or ["unknown"])[0]), config.to_dict(), flags))
    begun = _start.begin()
    if begun:
        tell(NAME, f"{begun} kernels that an earlier start listed are compiled while weights load")


def wait(_scheduler: Any) -> None:
    """Before ``Scheduler.init_all_attention_backends``, whose measurement and the captures after it need the kernels."""
    guarded(_wait)


def _wait() -> None:
    if _start is not None:
        with times.part("kernels compiled ahead: wait"):
            said = _start.wait()
        if said:
            tell(NAME, said)


def keep(_info: dict[str, Any], _scheduler: Any) -> None:
    """After ``Scheduler.get_init_info``, when all is captured: the list for the next start, beside the first requests."""
    if _start is not None:
        threading.Thread(target=guarded, args=(_start.keep,), daemon=True).start()


PATCH = Patch(
    name=NAME,
    switch="SGLANG_GEMMA4_COMPILE_AHEAD",
    why="Kernels that are not on disk are compiled one after another while graphs are captured, and the other cores wait.",
    evidence="runs/2026-11-23-e2b-images-ttft (61.8 of 73.3 s of the prefill graphs went to compiling) · tests/unit/test_compile_ahead.py "
    "(a launch finds what was compiled ahead) · its seconds were not measured on a card",
    remove_when="SGLang compiles Triton's kernels in parallel before it captures.",
    uses=(uses.kernels,),
    hooks=(
        Hook(f"{SCHEDULER}.init_model_worker", "before", begin, "2ac65ef1f800"),
        Hook(f"{SCHEDULER}.init_all_attention_backends", "before", wait, "a8b42acbf000"),
        Hook(f"{SCHEDULER}.get_init_info", "after", keep, "e9e7f8ba9a31"),
    ),
)
