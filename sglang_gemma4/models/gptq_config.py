"""Which checkpoints in GPTQ's or AWQ's layout can be read as compressed-tensors, and the config that they then get.

Neither torch nor sglang is imported.
"""

import contextlib
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from sglang_gemma4.patching.uses import LAID_OUT_AS
from sglang_gemma4.tiny.quantisation import EXPERT_GROUPS, NOT_QUANTISED, config, four_bits, reason_against_size

FLAGS = ("gptq", "gptq_marlin", "auto-round", "awq", "awq_marlin")
GPTQ, AWQ = "gptq", "awq"
"""The layouts. ``FLAGS``: values of ``--quantization`` for such checkpoints, as model cards have them."""
UNREAD = "not_read_because"
"""Key in the quantization_config of a checkpoint that is left alone: why its tensor names rule it out."""
KEPT_BITS = 16
"""The ``bits`` of a layer that is not quantised."""
FINE = 32
"""Group size (inputs per scale) where the checkpoint's own does not fit the model."""
_WEIGHT = re.compile(r"(.*(?<!norm))\.weight$")
_LEVELS = re.compile(r"(.*)\.qweight$")
_SPECIAL = frozenset(r"*+?^$()[]{}|\\")
"""Characters that make a name in AutoRound's ``extra_config`` a pattern.

See ``get_layer_config`` in sglang/srt/layers/quantization/auto_round.py.
"""
_FUSED = re.compile(r"(.*\.)(?:([qkv])_proj|(gate|up)_proj)$")
_EXPERT = re.compile(r"(.*\.experts)\.\d+\.\w+$")


def layout_of(given: Mapping[str, Any]) -> str | None:
    """The layout of the checkpoint's tensors, by its ``quantization_config``: :data:`GPTQ`, :data:`AWQ`, or None."""
    method, packing = str(given.get("quant_method", "")).lower(), str(given.get("packing_format", "")).lower()
    for layout in (GPTQ, AWQ):
        if method == layout or (method == "auto-round" and packing.endswith(layout)):
            return layout
    return None


def _same_names(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """The config with AutoAWQ's older names of bits and group size replaced by the usual ones."""
    names = {"bits": "w_bit", "group_size": "q_group_size"}
    return {**given, **{name: given[older] for name, older in names.items() if name not in given and older in given}}


def reason_against(given: Mapping[str, Any]) -> str | None:
    """Why a checkpoint with this config cannot be read as compressed-tensors, or None."""
    if UNREAD in given:
        return str(given[UNREAD])
    given = _same_names(given)
    quantised = [one for one in (given, *_changes(given).values()) if one.get("bits") != KEPT_BITS]
    bits = {one.get("bits", given.get("bits")) for one in quantised}
    awq = layout_of(given) == AWQ
    if given.get("bits") != 4 or not bits <= ({4} if awq else {4, 8}):
        return f"{', '.join(sorted(map(str, bits)))} bits, not 4" + ("" if awq else ", beside which single layers may have 8")
    if int(given.get("act_bits") or KEPT_BITS) < KEPT_BITS:
        return f"activations of {given['act_bits']} bits"
    if not awq and not all(one.get("sym", True) for one in quantised):
        return "quantised values that are not symmetric"
    if any(one.get("desc_act") for one in quantised):
        return "inputs in the order of their activations (desc_act)"
    if len({one.get("group_size", given.get("group_size")) for one in quantised}) > 1:
        return "groups of several sizes"
    if int(given.get("group_size") or -1) < 1:
        return "one scale for all inputs"
    if awq:
        return _reason_against_awq(given)
    packing = str(given.get("checkpoint_format") or "gptq"), str(given.get("pack_dtype") or "int32")
    if packing not in (("gptq", "int32"), ("gptq_v2", "int32")) or given.get("is_marlin_format"):
        return f"quantised values packed otherwise (checkpoint_format {packing[0]}, pack_dtype {packing[1]})"
    return "a quantised lm_head" if given.get("lm_head") else None


def _reason_against_awq(given: Mapping[str, Any]) -> str | None:
    version = str(given.get("version") or given.get("checkpoint_format") or "gemm").lower()
    if version != "gemm":
        return f"quantised values packed otherwise (version {version})"
    if not given.get("zero_point", True):
        return "quantised values without zero points"
    return "a quantised lm_head" if given.get("lm_head") else None


def reason_against_layers(given: Mapping[str, Any], names: Iterable[str] | None) -> str | None:
    """:func:`reason_against` by tensor names: per-layer bits must be known and equal within each fused projection."""
    if not any(one.get("bits", 4) not in (4, KEPT_BITS) for one in _changes(given).values()):
        return None
    if names is None:
        return "layers of 8 bits, which its tensors' names tell, and these are not on disk; download the checkpoint first (`hf download`)"
    products: dict[str, int] = {}
    of = bits_of(given)
    for layer in _quantised(names):
        bits = of(layer)
        if products.setdefault(_product(layer), bits) != bits:
            return f"{products[_product(layer)]} and {bits} bits within {_product(layer)}"
    return None


def bits_of(given: Mapping[str, Any]) -> Callable[[str], int]:
    """A function from a quantised layer's name in the checkpoint to its bits.

    Like SGLang, it ignores patterns that are not valid regular expressions.
    """
    changes = {name: int(one.get("bits", given["bits"])) for name, one in _changes(given).items()}
    of_gptq = str(given.get("quant_method", "")).lower() == "gptq"
    patterns: list[tuple[Callable[[str], Any], int]] = []
    for name, bits in changes.items():
        with contextlib.suppress(re.error):
            if of_gptq:
                patterns.append((re.compile(name.removeprefix("+:")).match, bits))
            elif _SPECIAL & set(name):
                patterns.append((re.compile(name).fullmatch, bits))

    def of(layer: str) -> int:
        if layer in changes:
            return changes[layer]
        return next((bits for matches, bits in patterns if matches(layer)), int(given["bits"]))

    return of


def _changes(given: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Settings of single layers: GPTQModel's ``dynamic`` without its "-:" entries, and AutoRound's ``extra_config``."""
    dynamic = {name: one for name, one in (given.get("dynamic") or {}).items() if not name.startswith("-:")}
    return {name: one for name, one in {**dynamic, **(given.get("extra_config") or {})}.items() if isinstance(one, Mapping)}


def _left_alone(given: Mapping[str, Any]) -> list[str]:
    """Layers that the config says are not quantised, in the form of compressed-tensors' ``ignore``."""
    patterns = [name.removeprefix("-:") for name in given.get("dynamic") or {} if name.startswith("-:")]
    patterns += [f".*{re.escape(part)}.*" for part in given.get("modules_to_not_convert") or ()]  # AWQ's, parts of names
    kept = [name for name, one in _changes(given).items() if one.get("bits") == KEPT_BITS]
    return [*(f"re:{one}" for one in patterns), *(f"re:{one}$" if _SPECIAL & set(one) else one for one in kept)]


def _quantised(names: Iterable[str]) -> list[str]:
    return [layer[1] for name in sorted(set(names)) if (layer := _LEVELS.match(name)) is not None]


def _product(layer: str) -> str:
    """SGLang's name of the fused layer that a layer's weight becomes a part of."""
    if (expert := _EXPERT.match(layer)) is not None:
        return expert[1]
    if (part := _FUSED.match(layer)) is not None:
        return part[1] + ("qkv_proj" if part[2] else "gate_up_proj")
    return layer


def _unfit(text: Mapping[str, Any], group: int) -> bool:
    return reason_against_size(text, four_bits(group)) is not None or (bool(text.get("enable_moe_block")) and group not in EXPERT_GROUPS)


def as_compressed(given: Mapping[str, Any], names: Iterable[str] | None, text: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The ``quantization_config`` of compressed-tensors, for a checkpoint without a :func:`reason_against`.

    Args:
        names: the checkpoint's tensor names, which tell what is quantised. None if they cannot be known before it is
            loaded: then all linear layers of the language model are, except routers and what ``given`` leaves alone.
        text: the text config. Groups that do not divide its sizes, so that the last one is shorter, and groups that the
            experts' kernels do not take, become groups of 32 with the same scales.
    """
    given, layout = _same_names(given), layout_of(given)
    group, symmetric = int(given["group_size"]), layout != AWQ
    if text is not None and group % FINE == 0 and _unfit(text, group) and not _unfit(text, FINE):
        group = FINE
    known = set(names or ())
    if names is None:
        kept = [*NOT_QUANTISED, *_left_alone(given)]
    else:
        layers = [layer[1] for name in sorted(known) if (layer := _WEIGHT.match(name)) is not None]
        kept = ["lm_head", *(layer for layer in layers if f"{layer}.qweight" not in known and layer != "lm_head")]
    found = config(four_bits(group, symmetric), kept)
    of = bits_of(given)
    if others := [layer for layer in _quantised(known) if of(layer) != given["bits"]]:
        four = found["config_groups"]["group_0"]
        targets = sorted({*others, *map(_product, others)})
        found["config_groups"]["group_1"] = {**four, "targets": targets, "weights": {**four["weights"], "num_bits": 8}}
    return {**found, LAID_OUT_AS: layout}
