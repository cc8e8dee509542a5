"""Converts LoRA adapters for Gemma 4 from PEFT's form to SGLang's fused layers; refuses by name what does not fit."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from sglang_gemma4.models.lora_targets import LAYER_OF, PARTS, LoraTargets

_NAME = re.compile(r"(?:(?:base_model|model|language_model)\.)*layers\.(\d+)\.(.+?)\.lora_([AB])(?:\.default)?\.weight")
_EXPERTS = ("experts", "experts.base_layer", "moe.experts", "moe.experts.base_layer")
"""PEFT's names for the two nested wrappers of ``target_parameters``; their sizes tell which parameter each adapts."""
_REFUSED = ("rank_pattern", "alpha_pattern", "alora_invocation_tokens", "layer_replication", "lora_bias")


class AdapterRefusedError(ValueError):
    """An adapter does not fit the model or the server; the message names the value and what would fit."""


def supported(targets: LoraTargets) -> str:
    """What adapters may change, for messages."""
    parts = ", ".join(part for name in PARTS if name in targets.names() for part in PARTS[name])
    return f"{parts} of the text model's decoder layers" + (" and their experts" if targets.config.enable_moe_block else "")


def check_config(name: str, config: Mapping[str, Any]) -> None:
    """Refuse settings of PEFT that would change answers but are not served.

    Raises:
        AdapterRefusedError: one of them is set.
    """
    for setting in _REFUSED:
        if config.get(setting):
            raise AdapterRefusedError(
                f"LoRA adapter {name}: {setting}={config[setting]!r} is not served; one rank r and one lora_alpha for all layers, "
                "without biases, are"
            )
    if config.get("bias", "none") != "none":
        raise AdapterRefusedError(f"LoRA adapter {name}: bias={config['bias']!r} is not served; 'none' is")


def layers_asked_for(targets: LoraTargets, name: str, config: Mapping[str, Any]) -> list[str]:
    """SGLang's layers that an adapter's ``target_modules`` and ``target_parameters`` name.

    The former is a list, or PEFT's regular expression. Unknown names are left out; weights for them are refused when
    the adapter is loaded.

    Raises:
        AdapterRefusedError: none of the layers can be adapted here.
    """
    asked = config.get("target_modules") or []
    if asked in ("all", "all-linear"):
        found = targets.names()
    elif isinstance(asked, str):
        numbers = range(targets.config.num_hidden_layers)
        found = {LAYER_OF[part] for number in numbers for part in LAYER_OF if _matches(asked, number, part)}
    else:
        found = {LAYER_OF[leaf] for leaf in (entry.split(".")[-1] for entry in asked) if leaf in LAYER_OF}
    if config.get("target_parameters"):
        found |= {"gate_up_proj", "down_proj"}
    if not found:
        raise AdapterRefusedError(
            f"LoRA adapter {name}: target_modules={asked!r}, target_parameters={config.get('target_parameters')!r} name nothing that is "
            f"adapted here; {supported(targets)} are"
        )
    return sorted(found)


def _matches(pattern: str, number: int, part: str) -> bool:
    holder = {"q": "self_attn.", "k": "self_attn.", "v": "self_attn.", "o": "self_attn.", "p": ""}.get(part[0], "mlp.")
    return any(re.fullmatch(pattern, f"{model}.layers.{number}.{holder}{part}") for model in ("model.language_model", "model"))


def check_fits_server(targets: Iterable[str], rank: int, served: set[str], most: int, name: str) -> None:
    """Check an adapter that is loaded into a running server.

    Raises:
        AdapterRefusedError: the server's buffers are too small for its rank, or lack a layer that it changes.
    """
    if rank > most:
        raise AdapterRefusedError(
            f"LoRA adapter {name} has rank {rank}, the server's buffers hold {most}; start it with --max-lora-rank {rank}"
        )
    missing = set(targets) - served
    if missing:
        raise AdapterRefusedError(
            f"LoRA adapter {name} changes {sorted(missing)}, the server was started for {sorted(served)}; start it with "
            "--lora-target-modules all, or with such an adapter in --lora-paths"
        )


def check_weight(targets: LoraTargets, rank: int, name: str, shape: Iterable[int]) -> None:
    """Check one tensor of an adapter of this rank before it is stored.

    Raises:
        AdapterRefusedError: no layer has its name, or that layer has another size.
    """
    shape = tuple(shape)
    found = _NAME.fullmatch(name)
    if found is None:
        raise AdapterRefusedError(f"LoRA weight {name} is not served: {supported(targets)} are adapted, nothing else")
    number, module, side = int(found[1]), found[2], found[3]
    if number >= targets.config.num_hidden_layers:
        raise AdapterRefusedError(
            f"LoRA weight {name}: the model has {targets.config.num_hidden_layers} layers; is it an adapter of another model?"
        )
    if not targets.text.start_layer <= number < targets.text.end_layer:
        return
    if module in _EXPERTS:
        _check_experts(targets, rank, name, number, side, shape)
        return
    leaf = module.split(".")[-1]
    sizes = targets.sizes(LAYER_OF[leaf], number) if leaf in LAYER_OF and module.count(".") <= 1 else None
    if sizes is None:
        raise AdapterRefusedError(f"LoRA weight {name} is not served: {supported(targets)} are adapted, nothing else")
    if leaf == "v_proj" and targets.values_are_keys(number):
        raise AdapterRefusedError(f"LoRA weight {name}: layer {number} takes its values from k_proj and has no v_proj (attention_k_eq_v)")
    layer, (inputs, outputs) = LAYER_OF[leaf], sizes
    expected = (rank, inputs) if side == "A" else (sum(outputs) if leaf == layer else outputs[PARTS[layer].index(leaf)], rank)
    if shape != expected:
        raise AdapterRefusedError(f"LoRA weight {name} is {list(shape)}; for rank {rank} this model's is {list(expected)}")


def _check_experts(targets: LoraTargets, rank: int, name: str, number: int, side: str, shape: tuple[int, ...]) -> None:
    sizes = targets.expert_sizes(number)
    if sizes is None:
        raise AdapterRefusedError(f"LoRA weight {name}: layer {number} has no experts")
    if targets.closed and not targets.experts:
        raise AdapterRefusedError(
            f"LoRA weight {name}: this server has no room for adapted experts; start it with such an adapter in --lora-paths"
        )
    if targets.against_experts:
        raise AdapterRefusedError(f"LoRA weight {name}: adapted experts are not served here: {targets.against_experts}")
    ranks = rank * targets.config.num_experts
    expected = [(ranks, inputs) if side == "A" else (outputs, ranks) for inputs, outputs in sizes.values()]
    if shape not in expected:
        raise AdapterRefusedError(
            f"LoRA weight {name} is {list(shape)}; for rank {rank} this model's is one of {[list(one) for one in expected]}"
        )


Pair = dict[str, torch.Tensor]
"""``A`` ``[rank, inputs]`` and ``B`` ``[outputs, rank]``."""


def fused(targets: LoraTargets, rank: int, number: int, weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """One decoder layer's weights under SGLang's names, each for a whole fused layer.

    They are zero where the adapter changes nothing. In a K = V layer the values get the keys' adapter.

    Args:
        weights: as in the file, all checked by :func:`check_weight`.

    Raises:
        AdapterRefusedError: one of a pair of weights is missing.
    """
    pairs: dict[str, Pair] = {}
    for name, weight in weights.items():
        found = _NAME.fullmatch(name)
        assert found is not None, name
        pairs.setdefault(found[2] if found[2] in _EXPERTS else found[2].split(".")[-1], {})[found[3]] = weight
    for module, pair in pairs.items():
        if len(pair) < 2:
            raise AdapterRefusedError(f"LoRA adapter: {module} of layer {number} has lora_{next(iter(pair))} alone")
    result: dict[str, torch.Tensor] = {}
    for layer, parts in PARTS.items():
        sizes = targets.sizes(layer, number)
        if sizes is None or not any(name in pairs for name in (layer, *parts)):
            continue
        a, b = _stacked(pairs, layer, parts, rank, *sizes, values_are_keys=targets.values_are_keys(number))
        result |= {f"layers.{number}.{layer}.lora_A.weight": a, f"layers.{number}.{layer}.lora_B.weight": b}
    for module in _EXPERTS:
        if module in pairs:
            name, a, b = _by_expert(targets, rank, number, pairs[module])
            result |= {f"layers.{number}.experts.{name}.lora_A.weight": a, f"layers.{number}.experts.{name}.lora_B.weight": b}
    return result


def _stacked(
    pairs: Mapping[str, Pair], layer: str, parts: tuple[str, ...], rank: int, inputs: int, outputs: list[int], values_are_keys: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    whole = pairs.get(layer)
    if whole is not None:
        return whole["A"].repeat(len(parts), 1), whole["B"]
    found = [pairs.get(part) for part in parts]
    if layer == "qkv_proj" and values_are_keys:
        found[2] = found[1]
    like = next(pair for pair in found if pair is not None)["A"]
    a = [like.new_zeros(rank, inputs) if pair is None else pair["A"] for pair in found]
    b = [like.new_zeros(size, rank) if pair is None else pair["B"] for pair, size in zip(found, outputs, strict=True)]
    return torch.cat(a), torch.cat(b)


def _by_expert(targets: LoraTargets, rank: int, number: int, pair: Pair) -> tuple[str, torch.Tensor, torch.Tensor]:
    """The layer's name, ``A`` ``[experts, rank, inputs]`` (twice for gate and up), ``B`` ``[experts, outputs, rank]``.

    PEFT stores all experts in one tensor: rows of ``A`` by expert, columns of ``B`` by rank (``ParamWrapper`` in
    ``peft/tuners/lora/layer.py``).
    """
    experts, sizes = targets.config.num_experts, targets.expert_sizes(number) or {}
    name = next(name for name, size in sizes.items() if size == (pair["A"].shape[1], pair["B"].shape[0])).removesuffix("_moe")
    a = pair["A"].reshape(experts, rank, -1)
    b = pair["B"].reshape(-1, rank, experts).permute(2, 0, 1).contiguous()
    return name, a.repeat(1, 2, 1) if name == "gate_up_proj" else a, b
