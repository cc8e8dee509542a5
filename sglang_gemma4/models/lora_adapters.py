"""Hooks that make LoRA adapters (--lora-paths) work: each layer's sizes, absent K and V, the dense FFN of MoE."""

import dataclasses
import math
from collections.abc import Callable, Iterable
from typing import Any

from sglang_gemma4.patching import tell


def attach_targets(original: Callable[..., None], manager: Any, *args: Any, **kwargs: Any) -> None:
    """Around ``LoRAManager.init_state``, which loads adapters, wraps layers and makes their buffers."""
    from sglang.srt.configs.load_config import LoadFormat

    from sglang_gemma4.models import lora_targets

    targets = lora_targets.attach(manager.base_model) if lora_targets.is_gemma4(manager.base_model) else None
    if targets is not None and manager.load_config.load_format == LoadFormat.DUMMY:
        # Only the model's weights are random; an adapter is read from its file.
        manager.load_config = dataclasses.replace(manager.load_config, load_format=LoadFormat.AUTO)
    original(manager, *args, **kwargs)
    if targets is not None:
        targets.closed = True


def _targets(model: Any) -> Any:
    from sglang_gemma4.models import lora_targets

    return lora_targets.of(model)


def check_adapter(manager: Any, lora_config: Any, lora_ref: Any) -> None:
    """Before ``LoRAManager.validate_new_adapter``: refuse what is not served, and resolve regular expressions.

    SGLang's own check does not name the values.
    """
    targets = _targets(manager.base_model)
    if targets is None:
        return
    from sglang_gemma4.models import lora_adapter

    lora_adapter.check_config(lora_ref.lora_name, lora_config.hf_config)
    lora_config.target_modules = lora_adapter.layers_asked_for(targets, lora_ref.lora_name, lora_config.hf_config)
    pool = getattr(manager, "memory_pool", None)
    if pool is not None:
        served = pool.target_modules, pool.max_lora_rank
        lora_adapter.check_fits_server(lora_config.target_modules, lora_config.r, *served, lora_ref.lora_name)


def settle_shapes(_result: None, manager: Any, max_lora_rank: int | None = None, target_modules: Iterable[str] | None = None) -> None:
    """After ``LoRAManager.init_lora_shapes``: settle which layers are adapted; check that the start's adapters fit."""
    targets = _targets(manager.base_model)
    if targets is None:
        return
    from sglang_gemma4.models import lora_adapter

    if target_modules and set(target_modules) == {"all"}:
        manager.target_modules = targets.names()
    elif refused := manager.target_modules - targets.names():
        raise lora_adapter.AdapterRefusedError(f"--lora-target-modules {sorted(refused)}: {lora_adapter.supported(targets)} are adapted")
    for lora_id, config in manager.configs.items():
        name = manager.lora_refs[lora_id].lora_name
        lora_adapter.check_fits_server(config.target_modules, config.r, manager.target_modules, manager.max_lora_rank, name)
    tell("lora", f"LoRA on {', '.join(sorted(manager.target_modules))}{' and experts' if targets.experts else ''}")


def check_weight(adapter: Any, name: str, loaded_weight: Any) -> None:
    """Before ``LoRAAdapter._process_weight``: check a weight's name and size.

    SGLang drops weights that it does not know, and finds a wrong size only at the first request.
    """
    targets = _targets(adapter.base_model)
    if targets is not None:
        from sglang_gemma4.models import lora_adapter

        lora_adapter.check_weight(targets, adapter.config.r, name, loaded_weight.shape)


def fuse_weights(original: Callable[..., None], adapter: Any) -> None:
    """Around ``LoRAAdapter._normalize_weights``: fuse each layer's weights, and apply rsLoRA's scaling."""
    targets = _targets(adapter.base_model)
    if targets is None:
        original(adapter)
        return
    from sglang_gemma4.models import lora_adapter

    for number, layer in enumerate(adapter.layers):
        if targets.text.start_layer <= number < targets.text.end_layer:
            layer.weights = lora_adapter.fused(targets, adapter.config.r, number, layer.weights)
            targets.experts |= any(".experts." in name for name in layer.weights)
        else:
            layer.weights = {}
    if adapter.config.hf_config.get("use_rslora"):
        adapter.scaling = adapter.config.lora_alpha / math.sqrt(adapter.config.r)


def make_buffers(original: Callable[..., None], pool: Any, base_model: Any) -> None:
    """Around ``LoRAMemoryPool.init_buffers``: a MoE layer's dense FFN gets buffers too.

    Its experts get buffers only if an adapter changes them.
    """
    targets = _targets(base_model)
    if targets is None:
        original(pool, base_model)
        return
    import torch

    pool._has_moe_module = lambda model: targets.experts
    original(pool, base_model)
    device = next(base_model.parameters()).device
    for name in pool.target_modules:
        for buffers, shape in ((pool.A_buffer, pool.get_lora_A_shape), (pool.B_buffer, pool.get_lora_B_shape)):
            if name not in buffers:
                shapes = [shape(name, base_model, pool.max_lora_rank, number) for number in range(pool.num_layer)]
                buffers[name] = [torch.zeros(one, dtype=pool.dtype, device=device) for one in shapes]


def shape(side: str, original: Callable[..., Any], pool: Any, module_name: str, base_model: Any, max_lora_dim: int, layer_idx: int) -> Any:
    """Around ``LoRAMemoryPool.get_lora_A_shape`` and ``get_lora_B_shape``, for this rank's part of one layer.

    The shapes are ``(adapters, stacked ranks, inputs)`` and ``(adapters, outputs, rank)``.
    """
    targets = _targets(base_model)
    if targets is None or module_name.endswith("_moe"):
        return original(pool, module_name, base_model, max_lora_dim, layer_idx)
    from sglang_gemma4.models.lora_targets import PARTS

    inputs, outputs = targets.local_sizes(module_name, layer_idx)
    sizes = (max_lora_dim * len(PARTS[module_name]), inputs) if side == "A" else (outputs, max_lora_dim)
    return pool.max_loras_per_batch, *sizes
