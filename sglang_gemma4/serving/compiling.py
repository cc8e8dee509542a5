"""Compiles kernels that are not on disk while weights load: Triton's from a list, FlashAttention-4's and CUDA's from the config."""

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from sglang_gemma4.patching import decline, switches, tell
from sglang_gemma4.start import times
from sglang_gemma4.start.ahead import Ahead, key_of

NAME = "compile_ahead"


FLAGS = (
    *("tp_size", "dtype", "kv_cache_dtype", "quantization", "page_size", "enable_lora"),
    *("attention_backend", "prefill_attention_backend", "decode_attention_backend"),
    *("speculative_algorithm", "speculative_num_draft_tokens", "disaggregation_mode"),
)


_start: Ahead | None = None


_modules: list[Any] = []
"""The ``CudaModules`` that this process began to build, if any; SGLang waits for a module where it needs one."""


_begun: list[Callable[[], str | None]] = []
"""Each waits for compilation that this process began, and returns a line for the log or None."""


def guarded(work: Callable[..., None], *given: Any) -> None:
    """Call ``work``; an exception is logged and never ends the start."""
    try:
        work(*given)
    except Exception as error:
        decline(NAME, f"{type(error).__name__}: {error}")


def begin(scheduler: Any) -> None:
    """Before ``Scheduler.init_model_worker``, which loads the weights: begin compiling, and record what Triton compiles here."""
    guarded(_begin_triton, scheduler)
    guarded(_begin_flash, scheduler)
    guarded(_begin_modules, scheduler)


def _has_card() -> bool:
    import torch
    from sglang.srt.runtime_context import get_parallel

    return bool(torch.cuda.is_available() and get_parallel().tp_rank == 0)


def _begin_triton(scheduler: Any) -> None:
    import torch
    from sglang.srt.arg_groups.model_override_base import resolved_view

    from sglang_gemma4.start import kernels, manifest, shipped

    global _start
    if not _has_card():
        return
    resolved, config = resolved_view(scheduler.server_args), scheduler.model_config.hf_config
    flags = {name: str(getattr(resolved, name, None)) for name in FLAGS}
    kernels.watch(manifest.record)
    whole, (major, minor) = config.to_dict(), torch.cuda.get_device_capability()
    key = key_of(str((config.architectures or ["unknown"])[0]), whole, flags)
    _start = Ahead(torch.cuda.get_device_name(), key, shipped.find(whole, flags, 10 * major + minor))
    if begun := _start.begin():
        whose = "an earlier start" if _start.known else "the package"
        tell(NAME, f"{begun} kernels that {whose} listed are compiled while weights load")
        _begun.append(_start.wait)


def _begin_flash(scheduler: Any) -> None:
    import torch

    from sglang_gemma4.attention import flash_ahead, flash_prefill

    if not _has_card() or torch.cuda.get_device_capability()[0] != flash_prefill.CAPABILITY:
        return
    model = scheduler.model_config
    if not switches.is_on("SGLANG_GEMMA4_FLASH_PREFILL") or model.dtype not in flash_prefill.DTYPES:
        return
    if scheduler.server_args.disaggregation_mode == "decode":
        return
    kinds = kinds_of_config(model.hf_config.to_dict(), scheduler.server_args.tp_size)
    kinds = [kind for kind in kinds if kind.dim in flash_prefill.HEAD_DIMS]  # the tiny models have other sizes and would wait for nothing
    if not kinds:
        return
    flash = flash_ahead.FlashAhead(torch.cuda.get_device_name(), kinds, model.dtype)
    if flash.begin():
        _begun.append(flash.wait)


def _begin_modules(scheduler: Any) -> None:
    import torch
    from sglang.srt.arg_groups.model_override_base import resolved_view
    from sglang.srt.environ import envs

    from sglang_gemma4.patching import switches
    from sglang_gemma4.start import cuda_modules

    # The resolved arguments: an assistant model makes SGLang draft, and the settings that follow are not in the arguments as given.
    model, given = scheduler.model_config, resolved_view(scheduler.server_args)
    if not _has_card() or torch.version.hip or model.dtype not in cuda_modules.DTYPES or cuda_modules.compiler() is None:
        return
    config = model.hf_config.to_dict()
    size = 0 if envs.SGLANG_USE_HND_KVCACHE.get() else cuda_modules.element(given.kv_cache_dtype, model.dtype, config)
    rows = [kind.kv_heads * kind.dim * size for kind in kinds_of_config(config, given.tp_size) if size]
    rows_of_ours = switches.four_bit_rows(torch.cuda.get_device_capability())
    as_loaded = switches.part_is_on("four_bit_linear", "SGLANG_GEMMA4_FEW_ROW_LINEAR") and rows_of_ours > 0
    marlin = cuda_modules.has_four_bits(config) and not as_loaded
    modules = cuda_modules.needed(rows, model.dtype, given.speculative_algorithm is not None, marlin)
    begun = cuda_modules.CudaModules(torch.cuda.get_device_name(), torch.cuda.get_device_capability(), modules)
    if begun.begin():
        _modules.append(begun)


def kinds_of_config(config: dict[str, Any], ranks: int) -> list[Any]:
    """The ``Kind`` of each attention type on a rank, from the config before the model exists (then: ``flash_prefill.kinds_of``)."""
    from sglang_gemma4.attention.flash_prefill import Kind
    from sglang_gemma4.diagnostics.text_geometry import text_geometry

    geometry, heads = text_geometry(config), (config.get("text_config") or config)["num_attention_heads"]
    windows = {"sliding_attention": geometry.sliding_window - 1, "full_attention": -1}
    return [Kind(heads // ranks, max(1, layer.kv_heads // ranks), layer.head_dim, windows[name]) for name, layer in geometry.layers.items()]


def wait(_scheduler: Any) -> None:
    """Before ``Scheduler.init_all_attention_backends``: wait for the kernels, which its measurement and later captures need."""
    while _begun:
        guarded(_wait, _begun.pop(0))


def _wait(waiting: Callable[[], str | None]) -> None:
    with times.part("kernels compiled ahead: wait"):
        said = waiting()
    if said:
        tell(NAME, said)


def keep(_info: dict[str, Any], _scheduler: Any) -> None:
    """After ``Scheduler.get_init_info``, when all is captured: write the list for the next start, in a thread."""
    if _start is not None or _modules:
        threading.Thread(target=partial(guarded, _keep), daemon=True).start()


def _keep() -> None:
    if _start is not None:
        _start.keep()
    while _modules:
        if said := _modules.pop().wait():
            tell(NAME, said)
    if _start is not None:
        _start.keep_on()
