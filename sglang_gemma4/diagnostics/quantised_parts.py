"""Which parts of a Gemma 4 model each group of a compressed-tensors ``quantization_config`` quantises.

SGLang gives a layer the scheme of the group that names it, else of the group that names its class, unless ``ignore``
names it (sglang/srt/layers/quantization/compressed_tensors/utils.py, ``find_matched_target``). For experts it looks
up only the first one. Neither torch nor sglang is imported.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

PREFIXES = ("model.language_model.", "language_model.model.", "language_model.", "model.")
"""Name prefixes of the language model's layers, as quantisers and SGLang write them."""
DENSE = (("mlp.gate_proj",), ("mlp.up_proj",), ("mlp.down_proj",))
"""The linear layers of a dense FFN, each with its possible names."""
EXPERTS = (("experts.0.gate_proj", "moe.experts.0.gate_proj"),)
"""The linear layer that decides for all experts: its name in the checkpoint, and in SGLang."""
CLASSES = {"Linear", "FusedMoE"}


def quantises(group: Mapping[str, Any], given: Mapping[str, Any], layers: int, parts: Iterable[tuple[str, ...]]) -> bool:
    """Whether a group's scheme applies to one of ``parts`` in at least one layer.

    Args:
        group: one of the config's ``config_groups``.
        given: the ``quantization_config``.
        layers: number of layers of the model.
        parts: :data:`DENSE` or :data:`EXPERTS`.
    """
    return any(_group_of(_names(number, part), given) is group for number in range(layers) for part in parts)


def _names(layer: int, part: tuple[str, ...]) -> list[str]:
    return [f"{prefix}layers.{layer}.{name}" for prefix in PREFIXES for name in part]


def _group_of(names: list[str], given: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The group of a layer that may have any of these names; None if the layer is not quantised."""
    if _named(names, given.get("ignore") or ()):
        return None
    groups: list[Mapping[str, Any]] = list((given.get("config_groups") or {}).values())
    by_name = next((group for group in groups if _named(names, group.get("targets") or ())), None)
    return by_name or next((group for group in groups if CLASSES & set(group.get("targets") or ())), None)


def _named(names: list[str], targets: Iterable[str]) -> bool:
    for target in targets:
        pattern = target.removeprefix("re:")
        if target in names or (pattern != target and any(re.match(pattern, name) for name in names)):
            return True
    return False
