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
_WEIGHT = re.compile(r"(.*(?<!norm))\.weight$")


def is_gptq(given: Mapping[str, Any]) -> bool:
    """Whether a ``quantization_config`` says that the checkpoint's tensors are laid out as GPTQ's."""
    method = str(given.get("quant_method", "")).lower()
    return method == "gptq" or (method == "auto-round" and str(given.get("packing_format", "")).lower().endswith("gptq"))


def reason_against(given: Mapping[str, Any]) -> str | None:
    """Why such a checkpoint cannot be read as compressed-tensors; None if it can."""
    bits, symmetric = given.get("bits"), given.get("sym", True)
    others = {value.get("bits", bits) for value in _changes(given)} - {bits}
    if bits != 4 or others - {16}:
        return f"{', '.join(map(str, sorted({bits, *others} - {None})))} bits, not 4 throughout"
    if not symmetric:
        return "levels that are not symmetric"
    if given.get("desc_act"):
        return "inputs in the order of their activations (desc_act)"
    if int(given.get("group_size") or -1) < 1:
        return "one scale for all inputs"
    return None


def _changes(given: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What single layers have: GPTQModel's ``dynamic``, AutoRound's ``extra_config``."""
    found = [*(given.get("dynamic") or {}).values(), *(given.get("extra_config") or {}).values()]
    return [one for one in found if isinstance(one, Mapping)]


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
