"""Let the frozen draft's attention backend read the target's KV: swap the pool, and everything that the backend derived from it.

A draft of FROZEN_KV_MTP reads the target's pool through a backend that was built for the draft's own pool of 64 slots. At construction
backends store whether sliding layers have their own slots, and translate page tables accordingly. A view that swaps only the pool makes
them read full-pool pages in the sliding pool (``crash_repro/fa4_view.py``), or misses the inner backends of a pair
(``crash_repro/hybrid_view.py``). :data:`ADAPTERS` lists for each known backend what depends on the pool; unknown backends are refused.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

Swap = tuple[Any, str, Any]
"""Object, attribute, and the attribute's value inside a view."""

Adapter = Callable[[Any, Any], list[Swap]]
"""(backend, target's pool) -> the swaps that let the backend read the pool."""

_ABSENT = object()


class UnknownBackendError(ValueError):
    """There is no adapter for the draft's attention backend."""


def swaps(backend: Any, pool: Any) -> list[Swap]:
    """What :func:`target_view` swaps for a backend and its inner backends.

    Raises:
        UnknownBackendError: there is no adapter for the backend's class or one of its bases.
    """
    for kind in type(backend).__mro__:
        adapter = ADAPTERS.get(kind.__name__)
        if adapter is not None:
            return adapter(backend, pool)
    raise UnknownBackendError(
        f"the frozen draft's attention backend {type(backend).__name__} is not known here, so the draft could read wrong KV slots; "
        f"use --attention-backend {' or '.join(NAMES)}"
    )


@contextmanager
def target_view(backend: Any, pool: Any) -> Iterator[None]:
    """Context in which ``backend`` reads ``pool``. Views nest; the previous values are restored, also after an exception.

    Raises:
        UnknownBackendError: see :func:`swaps`; nothing was changed.
    """
    saved: list[Swap] = []
    wanted = swaps(backend, pool)
    try:
        for where, name, value in wanted:
            saved.append((where, name, vars(where).get(name, _ABSENT)))
            setattr(where, name, value)
        yield
    finally:
        for where, name, value in reversed(saved):
            if value is _ABSENT:
                delattr(where, name)
            else:
                setattr(where, name, value)


def share_kv_scales(target: Any, draft: Any) -> None:
    """Share the KV scales of a target's layer with the draft's ``RadixAttention`` that reads its KV; tensors share memory.

    A quantised draft has parameters for scales of its own. Where the target has none, it has none either.
    """
    import torch

    for name in ("k_scale", "v_scale"):
        theirs, own = getattr(target, name, None), getattr(draft, name, None)
        if isinstance(own, torch.nn.Parameter) and theirs is not None:
            own.data = theirs.data
        else:
            if own is not None:
                delattr(draft, name)  # no tensor goes where a parameter is
            setattr(draft, name, None if theirs is None else theirs.data)
            draft.quant_method = None  # it would look for parameters when weights are updated
        setattr(draft, f"{name}_float", getattr(target, f"{name}_float", None))


def share_all_kv_scales(worker: Any) -> None:
    """:func:`share_kv_scales` for all layers of a ``FrozenKVMTPDraftWorker``'s assistant, once it is bound to the target's KV."""
    if worker.kv_context is None:
        return
    from sglang.srt.models.gemma4_mtp import _resolve_target_text_model

    target = _resolve_target_text_model(worker.target_worker.model_runner.model).layers
    for number, layer in enumerate(worker.draft_model_runner.model.model.layers):
        share_kv_scales(target[worker.kv_context.get_physical_layer_id(number)].self_attn.attn, layer.self_attn.attn)


def has_sliding_pool(pool: Any) -> bool:
    """Whether sliding layers of ``pool`` have their own slots, by the test that SGLang's backends use."""
    from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool

    return isinstance(pool, SWAKVPool) and pool.swa_layer_nums > 0


def _live(backend: Any, pool: Any) -> list[Swap]:
    """Our CPU reference backend, which stores nothing that it derives from the pool."""
    return [(backend, "token_to_kv_pool", pool)]


def _flagged(backend: Any, pool: Any) -> list[Swap]:
    """triton and intel_amx: the pool, and the flag whether slots are translated."""
    return [*_live(backend, pool), (backend, "use_sliding_window_kv_pool", has_sliding_pool(pool))]


def _flash_attention(backend: Any, pool: Any) -> list[Swap]:
    """fa3 and fa4: as :func:`_flagged`, and the shard of a page-interleaved pool."""
    from sglang.srt.layers.attention.flashattention_backend import get_kv_shard_pool

    return [*_flagged(backend, pool), (backend, "_kv_shard_pool", get_kv_shard_pool(pool))]


def _resolved(backend: Any, pool: Any) -> list[Swap]:
    """trtllm_mha and flashinfer: they, and flashinfer's index updaters, store the sliding pool itself."""
    sliding = pool if has_sliding_pool(pool) else None
    changes = [*_flagged(backend, pool), (backend, "_swa_kv_pool", sliding)]
    if hasattr(backend, "_swa_full_to_swa_mapping") and not backend.kv_index_translator.is_translating:
        changes.append((backend, "_swa_full_to_swa_mapping", None if sliding is None else sliding.full_to_swa_index_mapping))
    for name in ("indices_updater_decode", "indices_updater_prefill"):
        updater = getattr(backend, name, None)
        if updater is not None:
            changes.append((updater, "_swa_kv_pool", sliding))
    return changes


def _pair(backend: Any, pool: Any) -> list[Swap]:
    """A prefill and a decode backend under one wrapper."""
    return [*_live(backend, pool), *swaps(backend.prefill_backend, pool), *swaps(backend.decode_backend, pool)]


ADAPTERS: dict[str, Adapter] = {
    "TritonAttnBackend": _flagged,
    "TRTLLMHAAttnBackend": _resolved,
    "FlashInferAttnBackend": _resolved,
    "FlashAttentionBackend": _flash_attention,
    "IntelAMXAttnBackend": _flagged,
    "HybridAttnBackend": _pair,
    "Gemma4CpuAttention": _live,
}
"""By class name; subclasses use the adapter of their base."""

NAMES: Sequence[str] = ("triton", "trtllm_mha", "fa4", "intel_amx")
"""Backends with an adapter that SGLang allows for Gemma 4, by their names on the command line."""
