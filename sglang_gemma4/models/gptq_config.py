"""Which checkpoints in GPTQ's layout can be read as compressed-tensors', and the config they then have.

Neither torch nor sglang is imported.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from sglang_gemma4.tiny.quantisation import NOT_QUANTISED, config, four_bits
from sglang_gemma4.uses import LAID_OUT_AS

FLAGS = ("gptq", "gptq_marlin", "auto-round")
"""``--quantization`` of such a checkpoint, as model cards have it."""
KEPT_BITS = 16
"""Of a layer that stays as it is."""
_WEIGHT = re.compile(r"(.*(?<!norm))\.weight$")


def is_gptq(given: Mapping[str, Any]) -> bool:
    """Whether a ``quantization_config`` says that the checkpoint's tensors are laid out as GPTQ's."""
    method = str(given.get("quant_method", "")).lower()
    return method == "gptq" or (method == "auto-round" and str(given.get("packing_format", "")).lower().endswith("gptq"))


def reason_against(given: Mapping[str, Any]) -> str | None:
    """Why such a checkpoint cannot be read as compressed-tensors; None if it can."""
    quantised = [one for one in (given, *_changes(given)) if one.get("bits") != KEPT_BITS]
    bits = {one.get("bits", given.get("bits")) for one in quantised}
    if bits != {4}:
        return f"{', '.join(sorted(map(str, bits)))} bits, not 4 throughout"
    if int(given.get("act_bits") or KEPT_BITS) < KEPT_BITS:
        return f"activations of {given['act_bits']} bits"
    if not all(one.get("sym", True) for one in quantised):
        return "levels that are not symmetric"
    if any(one.get("desc_act") for one in quantised):
        return "inputs in the order of their activations (desc_act)"
    if len({one.get("group_size", given.get("group_size")) for one in quantised}) > 1:
        return "groups of several sizes"
    if int(given.get("group_size") or -1) < 1:
        return "one scale for all inputs"
    packing = str(given.get("checkpoint_format") or "gptq"), str(given.get("pack_dtype") or "int32")
    if packing not in (("gptq", "int32"), ("gptq_v2", "int32")) or given.get("is_marlin_format"):
        return f"levels packed otherwise (checkpoint_format {packing[0]}, pack_dtype {packing[1]})"
    return "a quantised lm_head" if given.get("lm_head") else None


def _changes(given: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What single layers have: GPTQModel's ``dynamic``, whose "-:" leaves a layer alone, and AutoRound's ``extra_config``."""
    dynamic = {name: one for name, one in (given.get("dynamic") or {}).items() if not name.startswith("-:")}
    return [one for one in (*dynamic.values(), *(given.get("extra_config") or {}).values()) if isinstance(one, Mapping)]


def as_compressed(given: Mapping[str, Any], names: Iterable[str] | None) -> dict[str, Any]:
    """The ``quantization_config`` of compressed-tensors for a checkpoint for which :func:`reason_against` has none.

    Args:
        names: of the checkpoint's tensors, which tell what is quantised; None where they cannot be known before it is loaded: then the
            language model's linear layers are, but for routers.
    """
    if names is None:
        kept = list(NOT_QUANTISED)
    else:
        known = set(names)
        layers = [layer[1] for name in sorted(known) if (layer := _WEIGHT.match(name)) is not None]
        kept = ["lm_head", *(layer for layer in layers if f"{layer}.qweight" not in known and layer != "lm_head")]
    return {**config(four_bits(int(given["group_size"])), kept), LAID_OUT_AS: "gptq"}
