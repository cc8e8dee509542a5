"""Translates the names in a quantised checkpoint's ``ignore`` and ``targets`` to those of SGLang's Gemma 4 modules.

A quantiser names the modules of transformers' model. SGLang fuses q, k and v, and gate and up, without the wrapper
``linear`` of a clipped layer. It keeps experts under ``moe`` and has other names in the audio tower. It also asks for
a v projection where the checkpoint has none (K = V) or where a layer reads another layer's KV. An ignored name that
matches nothing has silently no effect: the layer is built for quantised weights, and the checkpoint's unquantised ones
are never loaded into it.

SGLang is not imported.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sglang_gemma4.checkpoint import tensor_layout

_WRAPPED = re.compile(r"(.*_tower\..*\.(?:q_proj|k_proj|v_proj|gate_proj|up_proj))\.linear$")
_ATTENTION = re.compile(r"(.*layers\.(\d+)\.self_attn\.)(q_proj|k_proj)$")


@dataclass(frozen=True)
class Attention:
    """Numbers of a text model's layers whose V is K, and of those that read another layer's KV."""

    k_is_v: frozenset[int]
    shared: frozenset[int]


def attention_of(text: object) -> Attention:
    """The :class:`Attention` of a text config."""
    kinds = list(getattr(text, "layer_types", None) or ())
    k_is_v = {n for n, kind in enumerate(kinds) if kind == "full_attention"} if getattr(text, "attention_k_eq_v", False) else set()
    shared = int(getattr(text, "num_kv_shared_layers", 0) or 0)
    return Attention(frozenset(k_is_v), frozenset(range(len(kinds) - shared, len(kinds))))


def mapped(names: Iterable[str], attention: Attention, audio_name: Callable[[str], str] = lambda name: name) -> list[str]:
    """``names``, followed by SGLang's names of the same modules. Patterns (``re:``) are not translated.

    Args:
        audio_name: maps a weight's name in the audio tower to SGLang's; both end in ``.weight``.
    """
    given = list(names)
    found = list(given)
    for name in given:
        if not name.startswith("re:"):
            found += [other for other in _others(name, attention, audio_name) if other not in found]
    return found


def _others(name: str, attention: Attention, audio_name: Callable[[str], str]) -> list[str]:
    """SGLang's names of one module, other than its name in the checkpoint."""
    names = [name]
    if (read := tensor_layout.mapped(f"{name}.weight").removesuffix(".weight")) != name:  # a text model's, or as transformers 4 saved it
        names.append(read)
    if "audio_tower." in name:
        names.append(audio_name(f"{name}.weight").removesuffix(".weight"))
    for one in list(names):
        if (wrapped := _WRAPPED.match(one)) is not None:
            names.append(wrapped[1])
        if ".experts." in one and ".moe.experts." not in one:
            names.append(one.replace(".experts.", ".moe.experts."))
        if (of := _ATTENTION.match(one)) is not None and "_tower." not in one:
            layer = int(of[2])
            if of[3] == "k_proj" and layer in attention.k_is_v:
                names.append(f"{of[1]}v_proj")
            if of[3] == "q_proj" and layer in attention.shared:
                names += [f"{of[1]}k_proj", f"{of[1]}v_proj"]
    return names[1:]
