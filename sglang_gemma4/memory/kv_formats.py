"""Hooks that make SGLang build KV pools with scales per token and head, and count the bytes of these scales."""

from collections.abc import Callable
from typing import Any

from sglang_gemma4.kernels.kv_cache.formats import FORMATS, SCALE_BYTES, named


def offer(_result: None, parser: Any, *_args: Any, **_kwargs: Any) -> None:
    """After ``add_cli_args_from_dataclass``: --kv-cache-dtype accepts the formats' names."""
    for action in parser._actions:
        if action.dest == "kv_cache_dtype" and action.choices is not None:
            action.choices = [*action.choices, *(name for name in FORMATS if name not in action.choices)]


def resolve(original: Callable[..., Any], *, server_args_kv_cache_dtype: str, **others: Any) -> Any:
    """Around ``configure_kv_cache_dtype``: for our formats, the name and the dtype that stores it."""
    kind = named(server_args_kv_cache_dtype)
    if kind is None:
        return original(server_args_kv_cache_dtype=server_args_kv_cache_dtype, **others)
    return kind.name, kind.stored


def pool_class(original: Callable[..., Any], configurator: Any, *, kind: str, default: type) -> Any:
    """Around ``KVCacheConfigurator._resolve_kv_pool_class``: our pool class for our formats."""
    if kind != "mha" or named(configurator.kv_cache_dtype_str) is None:
        return original(configurator, kind=kind, default=default)
    from sglang_gemma4.attention.quantised_pool import PerTokenHeadPool

    return PerTokenHeadPool


def count_scales(_result: None, sizes: Any, configurator: Any) -> None:
    """After ``HybridSWAPoolConfigurator.__init__``: bytes per token include the scales of K and V of every KV head."""
    if named(sizes.kv_cache_dtype_str) is None:
        return
    from sglang.srt.runtime_context import get_parallel

    ranks, model = get_parallel().attn_tp_size, configurator.model_config
    sizes._full_per_token += 2 * SCALE_BYTES * model.get_num_kv_heads(ranks)
    sizes._swa_per_token += 2 * SCALE_BYTES * model.get_swa_num_kv_heads(ranks)
    sizes._recompute_cell_size()


def zero_scales(_result: Any, manager: Any, request: Any) -> None:
    """After ``resume_memory_occupation``: zero the scales, because the pools' memory comes back with arbitrary content.

    A NaN scale would spoil sums in which its key does not count.
    """
    if request.tags and "kv_cache" not in request.tags:
        return
    from sglang_gemma4.attention.quantised_pool import zero_scales as zero

    for _, runner in manager._select_runners():
        zero(runner.token_to_kv_pool)
