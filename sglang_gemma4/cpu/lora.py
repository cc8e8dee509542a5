"""SGLang's LoRA without a GPU: its host buffers are in pinned memory, which torch has only with a GPU."""

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class Unpinned(TorchFunctionMode):  # type: ignore[misc]
    """Context in which ``pin_memory`` has no effect."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.pin_memory:
            return args[0]
        kwargs = dict(kwargs or {})
        kwargs.pop("pin_memory", None)
        return func(*args, **kwargs)


def unpinned(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Around a method of SGLang's LoRA manager: without a GPU, its buffers are not pinned."""
    from sglang_gemma4.cpu.environment import has_accelerator

    if has_accelerator():
        return original(*args, **kwargs)
    with Unpinned():
        return original(*args, **kwargs)


def with_offsets(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Around ``TorchNativeLoRABackend.run_lora_b_sgemm``, which needs the offsets on the host too; replicated layers do not pass them."""
    if "output_offset_cpu" not in kwargs and "output_offset" in kwargs:
        kwargs["output_offset_cpu"] = kwargs["output_offset"].cpu()
    return original(*args, **kwargs)
