"""EAGLE-3's, DFlash's and DSpark's drafts, which have keys and values of their own, on the CPU reference engine."""

import copy
from collections.abc import Callable
from typing import Any

import torch

from sglang_gemma4.cpu.attention_backend import Gemma4CpuAttention

OURS = ("intel_amx", "torch_native")
"""Names under which SGLang finds the CPU reference engine's attention."""


class DraftSteps:
    """The attention of a chain's draft steps: step ``i`` sees the committed keys and those of the drafts 0 to ``i``.

    It replaces SGLang's ``IntelAMXMultiStepDraftBackend``, whose metadata and attention are SGLang's CPU kernels.
    """

    def __init__(self, runner: Any, topk: int, steps: int) -> None:
        if topk != 1:
            raise ValueError(f"--speculative-eagle-topk {topk}: the CPU reference engine drafts chains only; use 1")
        self.attn_backends = [_stamped(Gemma4CpuAttention(runner)) for _ in range(steps - 1)]
        self.device = runner.device
        _stamped(self)

    def init_forward_metadata(self, forward_batch: Any) -> None:
        """Describe the batch of each step."""
        for ahead, backend in enumerate(self.attn_backends, 1):
            backend.begin(forward_batch, ahead)


def decode_backend(original: Callable[..., Any], factory: Any) -> Any:
    """Around ``DraftBackendFactory.create_decode_backend``."""
    if not _on_a_cpu(factory.draft_model_runner) or factory.speculative_num_steps <= 1:
        return original(factory)
    return DraftSteps(factory.draft_model_runner, factory.topk, factory.speculative_num_steps)


def extend_backend(original: Callable[..., Any], factory: Any) -> Any:
    """Around ``DraftBackendFactory.create_draft_extend_backend``."""
    runner = factory.draft_model_runner
    return _stamped(Gemma4CpuAttention(runner)) if _on_a_cpu(runner) else original(factory)


def _on_a_cpu(runner: Any) -> bool:
    return isinstance(runner.attn_backend, Gemma4CpuAttention)


def _stamped(backend: Any) -> Any:
    """Set the names that ``DraftBackendFactory`` gives its backends, and return ``backend``."""
    backend.prefill_attention_backend_str = backend.decode_attention_backend_str = OURS[0]
    return backend


def resolve_blocks(original: Callable[[Any], None], server_args: Any) -> None:
    """Around ``_handle_dflash`` and ``_handle_dspark``, which reject a CPU: declare what they do for a GPU, with the target's attention."""
    from sglang.srt.arg_groups.model_override_base import attention_backends_of, resolved_view
    from sglang.srt.arg_groups.overrides import declare_resolution

    given = resolved_view(server_args)
    if given.device != "cpu":
        original(server_args)
        return
    prefill, _ = attention_backends_of(given)
    as_on_a_gpu = copy.copy(server_args)
    declared = [*(server_args._resolved_overrides or ()), (__name__, {"device": "cuda", "speculative_draft_attention_backend": "triton"})]
    as_on_a_gpu._resolved_overrides = list(declared)
    original(as_on_a_gpu)
    for source, fields in as_on_a_gpu._resolved_overrides[len(declared) :]:
        declare_resolution(server_args, source, **{**fields, **_own_backend(fields, prefill)})


def _own_backend(fields: dict[str, Any], prefill: str) -> dict[str, Any]:
    name = "speculative_draft_attention_backend"
    return {name: prefill} if name in fields else {}


def draft_backend_name(original: Callable[..., str], **named: Any) -> str:
    """Around ``resolve_draft_worker_attention_backend``, whose list of backends for drafts has none for CPUs."""
    from sglang.srt.runtime_context import attention_backends

    prefill, _ = attention_backends()
    return prefill if prefill in OURS else original(**named)


class _Unstreamed(torch.Tensor):
    """A CPU tensor that ignores ``record_stream``; results of operations on it are plain tensors."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    def record_stream(self, s: Any) -> None:
        """Does nothing: torch has it on GPUs only."""


def without_streams(original: Callable[..., Any], worker: Any, batch: Any, *args: Any, **named: Any) -> Any:
    """Around DFlash's and DSpark's ``forward_batch_generation``, which call ``record_stream`` on the batch's lengths."""
    lengths = batch.seq_lens
    if lengths is not None and not lengths.is_cuda:
        batch.seq_lens = lengths.as_subclass(_Unstreamed)
    return original(worker, batch, *args, **named)
