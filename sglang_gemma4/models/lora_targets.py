"""Which layers of a Gemma 4 model a LoRA adapter may change, and how large each is.

SGLang asks a model for one size per type of layer. Gemma 4 has several: head dimension and KV heads differ between
sliding and full layers, and the FFN of layers that share KV may be twice as wide. So sizes are read from the layers
themselves.
"""

import re
from typing import Any

from sglang.srt.layers.moe.fused_moe_triton import FusedMoE
from sglang.srt.layers.quantization.unquant import UnquantizedFusedMoEMethod
from sglang.srt.lora.layers import unwrap_lora_layer

from sglang_gemma4.kernels.card import reason_against_device

PARTS: dict[str, tuple[str, ...]] = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "o_proj": ("o_proj",),
    "gate_up_proj": ("gate_proj", "up_proj"),
    "down_proj": ("down_proj",),
    "per_layer_input_gate": ("per_layer_input_gate",),
    "per_layer_projection": ("per_layer_projection",),
}
"""SGLang's layers that adapters may change, and the checkpoint's layers that each fuses, in order."""
WHERE = {"qkv_proj": "self_attn", "o_proj": "self_attn", "gate_up_proj": "mlp", "down_proj": "mlp"}
"""The module of a decoder layer that holds each; those of per-layer embeddings belong to the layer itself."""
LAYER_OF = {part: layer for layer, parts in PARTS.items() for part in (*parts, layer)}
EXPERTS = ("gate_up_proj_moe", "down_proj_moe")
_WRAPPED = re.compile(
    r"(?:language_model|model)\.layers\.\d+\."
    r"(?:self_attn\.(?:qkv_proj|o_proj)|mlp\.(?:gate_up_proj|down_proj)|per_layer_input_gate|per_layer_projection|(moe\.experts))"
)
_KEY = "_sglang_gemma4_lora_targets"


class LoraTargets:
    """Answers to what SGLang's LoRA manager and memory pool ask a target model.

    Attributes:
        experts: whether an adapter changes experts. Only then are they wrapped and given buffers, for 26B-A4B at rank
            16 and 8 slots about 10 GiB by calculation.
        closed: whether the model's layers have been wrapped, so that ``experts`` is fixed.
        against_experts: why no adapter may change experts here, or None.
    """

    def __init__(self, model: Any) -> None:
        self.text = model.language_model if hasattr(model, "language_model") else model.model
        self.config = self.text.config
        self.experts = self.closed = False
        self.against_experts: str | None = None

    def should_apply_lora(self, module_name: str) -> bool:
        """Whether SGLang may wrap this module of the model."""
        found = _WRAPPED.fullmatch(module_name)
        return found is not None and (found[1] is None or self.experts)

    def linear(self, name: str, number: int) -> Any:
        """The layer of this name in decoder layer ``number``, without its LoRA wrapper; None if this rank has none."""
        layer = self.text.layers[number]
        holder = getattr(layer, WHERE[name], None) if name in WHERE else layer
        found = getattr(holder, name, None)
        return None if found is None else unwrap_lora_layer(found)

    def sizes(self, name: str, number: int) -> tuple[int, list[int]] | None:
        """Inputs, and outputs of each of ``PARTS[name]``, over all ranks; None as in :meth:`linear`."""
        linear = self.linear(name, number)
        if linear is None:
            return None
        if name == "qkv_proj":
            keys = linear.total_num_kv_heads * linear.head_size
            return linear.input_size, [linear.total_num_heads * linear.head_size, keys, keys]
        return linear.input_size, list(linear.output_sizes) if name == "gate_up_proj" else [linear.output_size]

    def expert_sizes(self, number: int) -> dict[str, tuple[int, int]] | None:
        """Inputs and outputs of an expert's two weights under SGLang's names; None if the layer has no experts."""
        if not getattr(self.text.layers[number], "enable_moe_block", False):
            return None
        hidden, inner = self.config.hidden_size, self.config.moe_intermediate_size
        return {"gate_up_proj_moe": (hidden, 2 * inner), "down_proj_moe": (inner, hidden)}

    def get_hidden_dim(self, module_name: str, layer_idx: int) -> tuple[int, int]:
        """Inputs and outputs over all ranks; 0 if this rank or model has no such layer.

        Raises:
            NotImplementedError: no adapter changes layers of this name.
        """
        if module_name in EXPERTS:
            return (self.expert_sizes(layer_idx) or {}).get(module_name, (0, 0))
        if module_name not in PARTS:
            raise NotImplementedError(f"LoRA on {module_name} of Gemma 4")
        inputs, outputs = self.sizes(module_name, layer_idx) or (0, [0])
        return inputs, sum(outputs)

    def local_sizes(self, module_name: str, number: int) -> tuple[int, int]:
        """This rank's part of :meth:`get_hidden_dim`; not for experts."""
        linear = self.linear(module_name, number)
        if linear is None:
            return 0, 0
        inputs = getattr(linear, "input_size_per_partition", linear.input_size)
        by_column = module_name in ("qkv_proj", "gate_up_proj")
        return int(inputs), int(sum(linear.output_partition_sizes) if by_column else linear.output_size)

    def values_are_keys(self, number: int) -> bool:
        """Whether a layer has no projection for values and uses its keys."""
        return bool(getattr(self.config, "attention_k_eq_v", False)) and self.config.layer_types[number] == "full_attention"

    def names(self) -> set[str]:
        """SGLang's names of the layers that adapters may change here, without experts."""
        numbers = range(self.text.start_layer, self.text.end_layer)
        return {name for name in PARTS if any(self.linear(name, number) is not None for number in numbers)}


def attach(model: Any) -> LoraTargets:
    """Add to a target model, once, the methods by which SGLang asks for sizes."""
    present = of(model)
    if present is not None:
        return present
    targets = LoraTargets(model)
    targets.against_experts = reason_against_device(next(model.parameters()).device) or _reason_against_quantised_experts(model)
    model.__dict__.update({_KEY: targets, "should_apply_lora": targets.should_apply_lora, "get_hidden_dim": targets.get_hidden_dim})
    return targets


def _reason_against_quantised_experts(model: Any) -> str | None:
    """Why experts cannot be adapted, or None: SGLang's runner of adapted experts was only tried on unquantised ones."""
    for layer in model.modules():
        method = layer.quant_method if isinstance(layer, FusedMoE) else None
        if method is not None and (not isinstance(method, UnquantizedFusedMoEMethod) or getattr(method, "dequantised", False)):
            return "they are quantised; leave experts out of the adapter, or serve the unquantised checkpoint"
    return None


def of(model: Any) -> LoraTargets | None:
    """The targets that :func:`attach` gave this model, or None."""
    found: LoraTargets | None = getattr(model, "__dict__", {}).get(_KEY)
    return found


def is_gemma4(model: Any) -> bool:
    """Whether this is a target whose decoder layers are SGLang's ``Gemma4DecoderLayer``."""
    from sglang.srt.models.gemma4_causal import Gemma4TextModel

    text = getattr(model, "language_model", None) or getattr(model, "model", None)
    return isinstance(text, Gemma4TextModel)
