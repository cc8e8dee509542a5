"""Which layers need KV buffers."""

from collections.abc import Iterable, Sequence
from typing import Any

dropped: list[int] = []
"""Layers of this process's model that ``without_unread`` left without buffers."""

uncharged: list[int] = [0, 0]
"""Numbers of draft layers that SGLang would count in a token's bytes and ``draft_budget`` does not: [full, sliding]."""


def layout_tag() -> str | None:
    """Name of this process's layout of KV pages, or None if every layer has buffers."""
    return f"without-kv-of-layers-{min(dropped)}-{max(dropped)}" if dropped else None


def read_by_attention(model: Any, attention_class: type) -> set[int]:
    """Ids of the layers whose KV buffers some attention layer of ``model`` reads or writes.

    A KV-shared layer carries the id of the layer that owns its KV (``gemma4_causal.py:432``), so its own id is in no
    attention layer.

    Args:
        model: the loaded ``torch.nn.Module``.
        attention_class: SGLang's ``RadixAttention``.
    """
    found: list[Any] = [module for module in model.modules() if isinstance(module, attention_class)]
    return {int(attention.layer_id) for attention in found}


def only(layer_ids: Sequence[int] | None, needed: Iterable[int]) -> list[int] | None:
    """``layer_ids`` that are in ``needed``, in their order.

    None, for a model without a split into full and sliding layers, stays None.
    """
    if layer_ids is None:
        return None
    wanted = set(needed)
    return [layer for layer in layer_ids if layer in wanted]


def without_unread(info: Any, model: Any, attention_class: type) -> Any:
    """SGLang's ``ModelLayerInfo`` without the layers whose KV is never read; the same object if there are none.

    The runner's first and last layer do not change: they count decoder layers, not buffers.
    """
    import msgspec

    needed = read_by_attention(model, attention_class)
    sliding, full = only(info.swa_attention_layer_ids, needed), only(info.full_attention_layer_ids, needed)
    if not sliding or not full or (sliding == info.swa_attention_layer_ids and full == info.full_attention_layer_ids):
        return info
    dropped[:] = sorted({*info.swa_attention_layer_ids, *info.full_attention_layer_ids} - {*sliding, *full})
    return msgspec.structs.replace(info, swa_attention_layer_ids=sliding, full_attention_layer_ids=full)


def drop_unread_layers(info: Any, *, model: Any, model_config: Any, is_draft_worker: bool, **_kwargs: Any) -> Any:
    """After ``resolve_layer_indices``: the full and sliding layer ids that the pools are built and priced from."""
    shared = getattr(model_config.hf_text_config, "num_kv_shared_layers", 0)
    if is_draft_worker or not shared or not type(model).__name__.startswith("Gemma4"):
        return info
    from sglang.srt.layers.radix_attention import RadixAttention

    return without_unread(info, model, RadixAttention)


def name_stored_pages(name: str | None, _model_name: str | None, _host_pool: Any) -> str | None:
    """After ``storage_model_name``: append the layout tag.

    HiCache's storage finds pages by this name and does not know how many layers they hold.
    """
    return "-".join(filter(None, (name, layout_tag()))) or name


def tell_peer(_result: None, kv_args: Any, *_args: Any, **_kwargs: Any) -> None:
    """After ``setup_state_kv_args``: append the layout tag to a string that SGLang compares.

    Both servers of a disaggregated pair must hold the same layers.
    """
    if tag := layout_tag():
        kv_args.kv_cache_dtype_str = f"{kv_args.kv_cache_dtype_str} {tag}"
