"""Whether a checkpoint holds every tensor of its model: none missing, incomplete, misshapen or wrongly named.

SGLang skips names that it does not know, and counts a fused parameter (q, k and v; gate and up; all experts) as loaded
once any part of it arrives. The rest is then served as uninitialised memory. These checks use the tensor names in a
file's header, or the names of tensors while they are loaded.

SGLang is not imported.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from sglang_gemma4.checkpoint.tensor_layout import Config, Shape, is_tied, plain, tensors

AGAIN = "write or download the checkpoint again"
VALUES = ("weight", "weight_packed", "qweight")
"""Names of the tensor with a layer's values, quantised or not."""
SCALES = ("weight_scale", "weight_scale_inv", "scale", "scales")
INPUTS = {"input_scale", "input_global_scale"}
"""Scales of activations. An expert that the calibration never reached has none."""
SMALL = ("F8_E4M3", "F8_E5M2", "I8", "U8")
"""safetensors dtypes of quantised values, which need a scale."""
_PARTS = (
    "weight|weight_packed|weight_scale|weight_scale_inv|weight_scale_2|weight_shape|weight_zero_point|weight_global_scale|scale|"
    "qweight|qzeros|scales|input_scale|input_global_scale"
)
_PART = re.compile(rf"(.*)\.({_PARTS})$")
_TOGETHER = re.compile(r"(.*\.experts\.(?:gate_up_proj|down_proj))(?:[._](\w+))?$")
"""All experts of a layer in one tensor; if they are quantised, the name of the part follows."""
_EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(gate|up|down)_proj$")
_FUSED = re.compile(r"(.*)\.(?:(self_attn)\.[qkv]|(mlp)\.(?:gate|up))_proj$")
_TRAINERS = (
    ("base_model.", "an adapter's training wrapper (PEFT)", "save what model.merge_and_unload() returns"),
    ("_orig_mod.", "a compiled model", "save model._orig_mod"),
    ("_fsdp_wrapped_module.", "a model wrapped by FSDP", "gather its full state dict and save that"),
    ("module.", "a model wrapped for training", "save model.module"),
)
_ADAPTER = re.compile(
    r"\.base_layer\.|\.lora_[AB]\b|\.lora_embedding_[AB]\b|\.lora_magnitude_vector\b|\.modules_to_save\.|\.original_module\."
)
_HARMLESS = re.compile(
    r".*(?:rotary_emb\.\w+|inv_freq|layer_scalar|(?:input|output)_(?:min|max)|_extra_state|\.[qkv]_scale|kv_scale|g_idx|input_scale|"
    r"num_batches_tracked)$"
)
_TOWERS = ("vision_tower.", "vision_embedder.", "embed_vision.", "audio_tower.", "embed_audio.")


class Tensor(NamedTuple):
    """A checkpoint's tensor: its safetensors dtype name and its shape."""

    dtype: str
    shape: Shape


def reason_against(found: Mapping[str, Tensor], config: Config, towers: bool = True, shapes: bool = True) -> str | None:
    """Why a checkpoint with these tensors cannot be the model of this configuration, or None; one line with the remedy.

    Args:
        found: the tensors, by their names in the checkpoint.
        towers: whether the server loads the towers, too.
        shapes: whether to compare shapes with those of the configuration.
    """
    return next(_reasons(found, config, towers, shapes), None)


def _reasons(found: Mapping[str, Tensor], config: Config, towers: bool, shapes: bool) -> Iterator[str]:
    needed = tensors(config, towers)
    ours = {plain(name): tensor for name, tensor in found.items()}
    parts = _parts_of(ours)
    missing = [name for wanted, shape in needed.items() for name in _missing(wanted, shape, ours, parts)]
    missing += _scalars(ours, needed)
    yield from _of_trainers(found, bool(missing))
    if missing:
        yield _all_about(missing, needed, found)
    used = {layer: have for layer, have in parts.items() if not _is_unused(layer, needed)}
    if uneven := [*_uneven(used), *(_without_scales(ours, used) if _has_scales(config) else ())]:
        yield f"{_some(uneven)}; of a layer that is quantised, or fused with others, all parts are needed: {AGAIN}"
    if shapes:
        reasons = (other_shape(name, ours[name], shape) for name, shape in needed.items() if name in ours)
        yield from (reason for reason in reasons if reason is not None)


def _has_scales(config: Config) -> bool:
    """Whether quantised values need scale tensors; bitsandbytes keeps its scales elsewhere."""
    given = config.get("quantization_config")
    method = given.get("quant_method") if isinstance(given, Mapping) else getattr(given, "quant_method", None)
    return bool(given) and "bitsandbytes" not in str(method).lower()


def _some(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} (and {len(names) - 1} more like it)"


def _of_trainers(found: Iterable[str], is_missing: bool) -> Iterator[str]:
    """One error for each kind of training wrapper in the names.

    If no tensor is missing, wrapped names (an adapter's file) are harmless: SGLang skips them.
    """
    prefixes = tuple(prefix for prefix, _, _ in _TRAINERS)
    names = [name for name in found if is_missing or not name.startswith(prefixes)]
    for prefix, what, remedy in _TRAINERS:
        if (first := next((name for name in names if name.startswith(prefix)), None)) is not None:
            yield f"the checkpoint's tensors have the names of {what}, {first} for one; {remedy}"
    if (first := next((name for name in names if _ADAPTER.search(name)), None)) is not None:
        yield (
            f"the checkpoint holds a LoRA adapter that is not merged, {first} for one; save what model.merge_and_unload() returns, or "
            f"serve the base model with --lora-paths"
        )


def _parts_of(ours: Iterable[str]) -> dict[str, set[str]]:
    """The parts that are present, by layer: "weight" if unquantised, "" for all experts in one tensor."""
    found: dict[str, set[str]] = defaultdict(set)
    for name in ours:
        part = _TOGETHER.match(name) or _PART.match(name)
        if part is not None:
            found[part[1]].add(part[2] or "")
    return found


def _missing(wanted: str, shape: Shape | None, ours: Mapping[str, Tensor], parts: Mapping[str, set[str]]) -> Iterator[str]:
    """Names of the absent tensors that make up ``wanted``, a tensor of the model."""
    if wanted in ours:
        return
    together = _TOGETHER.match(wanted)
    if together is None:
        if not (wanted.endswith(".weight") and any(part in parts.get(wanted.removesuffix(".weight"), ()) for part in VALUES)):
            yield wanted
    elif wanted not in parts and shape is not None:
        experts = wanted.rpartition(".")[0]
        kinds = ("gate", "up") if wanted.endswith("gate_up_proj") else ("down",)
        each = [f"{experts}.{number}.{kind}_proj" for number in range(shape[0]) for kind in kinds]
        absent = [name for name in each if not any(part in parts.get(name, ()) for part in VALUES)]
        yield from (wanted,) if len(absent) == len(each) else (f"{name}.weight" for name in absent)


def _scalars(ours: Mapping[str, Tensor], needed: Iterable[str]) -> list[str]:
    """Absent ``layer_scalar`` names if other layers have one; if none has, the default of 1 holds for all."""
    layers = {name.rsplit(".", 2)[0] for name in needed if name.endswith(".input_layernorm.weight") and name.startswith("language_model.")}
    absent = [f"{layer}.layer_scalar" for layer in sorted(layers) if f"{layer}.layer_scalar" not in ours]
    return absent if len(absent) < len(layers) else []


def _all_about(missing: list[str], needed: Mapping[str, Shape | None], found: Mapping[str, Tensor]) -> str:
    """One line about the missing tensors."""
    if len(missing) >= len(needed):
        first = next(iter(found), "none at all")
        return (
            f"the checkpoint has none of the model's {len(needed)} tensors (it has {first}, for one); give the model that config.json "
            "describes"
        )
    names = ", ".join(_spelled(name, found) for name in missing[:3])
    text = f"the checkpoint lacks {len(missing)} of the model's {len(needed)} tensors: {names}{', …' * (len(missing) > 3)}"
    if all(name.startswith(_TOWERS) for name in missing):
        return f"{text}; add --language-model-only where no request has images or audio, or {AGAIN}"
    if missing == ["lm_head.weight"]:
        return f"{text}, and config.json says that the head is not the embedding (tie_word_embeddings false); {AGAIN}"
    return f"{text}; {AGAIN}"


def _spelled(name: str, found: Iterable[str]) -> str:
    """``name`` with the prefix that the rest of the checkpoint uses."""
    if name.startswith(_TOWERS):
        return f"model.{name}"
    if not name.startswith("language_model."):
        return name
    prefixes = ("model.language_model.", "language_model.model.", "language_model.", "model.", "")
    used = next(prefix for prefix in prefixes if any(one.startswith(f"{prefix}layers.") for one in found) or not prefix)
    return used + name.removeprefix("language_model.")


def _is_unused(layer: str, needed: Mapping[str, Shape | None]) -> bool:
    """Whether the model does not use this layer: K/V projections of KV-shared layers, or a tower that is not loaded."""
    return (layer.startswith(_TOWERS) or _FUSED.match(layer) is not None) and f"{layer}.weight" not in needed


def _uneven(parts: Mapping[str, set[str]]) -> Iterator[str]:
    """One error for each part that a layer lacks although a layer fused with it has that part."""
    groups: dict[str, list[str]] = defaultdict(list)
    for layer in parts:
        if (expert := _EXPERT.match(layer)) is not None:
            groups[f"{expert[1]} {'down' if expert[3] == 'down' else 'gate'}"].append(layer)
        elif (fused := _FUSED.match(layer)) is not None:
            groups[f"{fused[1]} {fused[2] or fused[3]}"].append(layer)
    for group, layers in groups.items():
        every = set().union(*(parts[layer] for layer in layers))
        if ".experts " in group:
            every -= INPUTS
        for layer in sorted(layers):
            for part in sorted(every - parts[layer]):
                other = next(one for one in sorted(layers) if part in parts[one])
                yield f"the checkpoint has no {layer}.{part}, though it has {other}.{part}"


def _without_scales(ours: Mapping[str, Tensor], parts: Mapping[str, set[str]]) -> Iterator[str]:
    """One error for each quantised layer without scales."""
    for layer, have in parts.items():
        small = "weight" in have and f"{layer}.weight" in ours and ours[f"{layer}.weight"].dtype in SMALL
        if (small or {"weight_packed", "qweight"} & have) and not have.intersection(SCALES):
            yield f"the checkpoint has {layer}.{'weight' if small else min(have)} in quantised values, and no scales of it"


def other_shape(name: str, held: Tensor, shape: Shape | None) -> str | None:
    """Why a tensor does not fit a model tensor of ``shape``, or None. Quantised values are not compared."""
    if shape is None or held.dtype in SMALL or tuple(held.shape) == shape:
        return None
    return (
        f"the checkpoint's {name} has the shape {list(held.shape)}, and the model of its config.json {list(shape)}; "
        f"give the config.json that belongs to it"
    )


def left_over(found: Iterable[str], config: Config, towers: bool = True) -> list[str]:
    """Names that no module loads, without harmless ones.

    Harmless are buffers, a tied head, K/V tensors of KV-shared layers, and towers that are not loaded.
    """
    needed = tensors(config, towers)
    layers = {name.rpartition(".")[0] for name in needed}
    return [name for name in found if not _is_known(plain(name), needed, layers, is_tied(config), towers)]


def _is_known(name: str, needed: Mapping[str, Shape | None], layers: set[str], tied: bool, towers: bool) -> bool:
    if name in needed or _HARMLESS.match(name) or (tied and name.startswith("lm_head.")) or (not towers and name.startswith(_TOWERS)):
        return True
    if re.match(r"language_model\.layers\.\d+\.self_attn\.(?:k_proj|v_proj|k_norm|v_norm)\.", name):
        return name.partition(".self_attn.")[0] + ".self_attn.q_norm.weight" in needed
    layer = _PART.match(name)
    experts = _TOGETHER.match(name)
    each = _EXPERT.match(layer[1]) if layer is not None else None
    return (
        (layer is not None and layer[1] in layers)
        or (experts is not None and experts[1] in needed)
        or (each is not None and f"{each[1]}.down_proj" in needed)
    )
