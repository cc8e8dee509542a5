"""Functions that patches install where SGLang has to know about the CPU engine."""

from collections.abc import Callable
from typing import Any

from sglang_gemma4.cpu.attention_backend import Gemma4CpuAttention


def sampled_verification(*, is_all_greedy: bool, **_: Any) -> bool:
    """``_verify_uses_greedy``: only if every request is greedy; on a CPU stock always says yes."""
    return is_all_greedy


def draft_backend(original: Callable[..., Any], worker: Any) -> Any:
    """``FrozenKVMTPDraftWorker._init_draft_attn_backend``: topk > 1 uses the same backend as topk = 1.

    The draft writes no KV, so its frontier of ``requests * topk`` rows is an ordinary decode batch.
    """
    backend = worker.draft_model_runner.attn_backend
    return backend if isinstance(backend, Gemma4CpuAttention) else original(worker)


def image_masks(original: Callable[..., Any], model: Any, forward_batch: Any, *args: Any, **kwargs: Any) -> Any:
    """``prepare_attn_masks``: our backend needs no masks, it reads image spans from the batch."""
    from sglang.srt.model_executor.forward_context import get_attn_backend

    if isinstance(get_attn_backend(), Gemma4CpuAttention):
        return None
    return original(model, forward_batch, *args, **kwargs)
