"""The formats of ``checkpoint --quantization``: their schemes, and the ``quantization_config`` of a config.json.

The schemes are compressed-tensors' own presets (``compressed_tensors/quantization/quant_scheme.py``: FP8_DYNAMIC,
FP8, FP8_BLOCK, W4A16, W4A16_ASYM), which llm-compressor writes. 26B-A4B needs groups of 32 instead of 128. Needs
neither torch nor compressed-tensors.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

_FLOAT8 = {"num_bits": 8, "type": "float", "symmetric": True}
_STATIC = {"dynamic": False}
_DYNAMIC = {"dynamic": True}


@dataclass(frozen=True)
class Format:
    """One format: ``weights`` and ``activations`` are compressed-tensors' arguments.

    ``block`` is (outputs, inputs) of the weights that share a scale; 0 stands for all of them. ``bytes_per_weight``
    includes the scales.
    """

    name: str
    layout: str
    weights: Mapping[str, Any]
    activations: Mapping[str, Any] | None = None
    block: tuple[int, int] = (1, 0)
    bytes_per_weight: float = field(default=1.0, kw_only=True)


def four_bits(group: int, symmetric: bool = True) -> Format:
    """4-bit weights with a scale for every ``group`` inputs, and a zero point if not symmetric; activations are not quantised."""
    weights = {"num_bits": 4, "type": "int", "symmetric": symmetric, "strategy": "group", "group_size": group, **_STATIC}
    name, beside = f"w4a16-{'' if symmetric else 'asym-'}g{group}", 2 if symmetric else 2.5
    return Format(name, "pack-quantized", weights, block=(1, group), bytes_per_weight=0.5 + beside / group)


FORMATS: dict[str, Format] = {
    one.name: one
    for one in (
        Format(
            "fp8-dynamic",
            "float-quantized",
            {**_FLOAT8, **_STATIC, "strategy": "channel"},
            {**_FLOAT8, **_DYNAMIC, "strategy": "token"},
        ),
        Format(
            "fp8-static",
            "float-quantized",
            {**_FLOAT8, **_STATIC, "strategy": "tensor"},
            {**_FLOAT8, **_STATIC, "strategy": "tensor"},
            block=(0, 0),
        ),
        Format(
            "fp8-block",
            "float-quantized",
            {**_FLOAT8, **_STATIC, "strategy": "block", "block_structure": [128, 128]},
            {**_FLOAT8, **_DYNAMIC, "strategy": "group", "group_size": 128},
            block=(128, 128),
        ),
        four_bits(32),
        four_bits(128),
        four_bits(32, symmetric=False),
    )
}

EXPERT_GROUPS = (32, 128)
"""Group sizes (inputs per scale) of SGLang's Triton kernel for 4-bit experts, the one that computes gelu
(compressed_tensors.py, ``_is_wna16_triton_moe_supported``)."""
NOT_QUANTISED = ("re:.*lm_head$", "re:.*vision_tower.*", "re:.*audio_tower.*", "re:.*embed_vision.*", "re:.*embed_audio.*", "re:.*router.*")
"""Layers that stay in bfloat16, as patterns that SGLang reads: the head, both towers with their embedders, routers."""


def format_of(name: str, flag: str = "--quantization") -> Format:
    """The format of this name, which was given under ``flag``.

    Raises:
        ValueError: there is no format of that name.
    """
    if name not in FORMATS:
        raise ValueError(f"{flag} {name}: unknown; there are {', '.join(FORMATS)}")
    return FORMATS[name]


def tiny(form: Format) -> Format:
    """The format for the tiny models, with blocks of 32 instead of 128: their linear layers can be as small as 32."""
    if form.block != (128, 128):
        return form
    weights = {**form.weights, "block_structure": [32, 32]}
    return replace(form, weights=weights, activations={**(form.activations or {}), "group_size": 32}, block=(32, 32))


def config(form: Format, ignore: Sequence[str] = NOT_QUANTISED) -> dict[str, Any]:
    """The ``quantization_config`` of a checkpoint of this format, laid out as compressed-tensors writes it."""
    group = {
        "targets": ["Linear"],
        "weights": dict(form.weights),
        "input_activations": dict(form.activations) if form.activations else None,
        "output_activations": None,
        "format": form.layout,
    }
    return {
        "quant_method": "compressed-tensors",
        "format": form.layout,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": list(ignore),
        "kv_cache_scheme": None,
        "global_compression_ratio": None,
        "sparsity_config": {},
        "transform_config": {},
    }


def check_sizes(name: str, text: Mapping[str, Any], form: Format, flag: str = "--quantization") -> None:
    """Refuse a format whose blocks or groups do not divide a model's linear layers: SGLang could not load them.

    Args:
        name: the model's name, for the message.
        text: its text config.
        flag: the flag that gave the format.

    Raises:
        ValueError: with the size, the block and the formats that fit.
    """
    problem = reason_against_size(text, form)
    if problem is not None:
        others = [other.name for other in FORMATS.values() if reason_against_size(text, other) is None]
        raise ValueError(f"{flag} {form.name}: {problem} of {name}; its GEMMs take {', '.join(others)}")


def reason_against_size(text: Mapping[str, Any], form: Format) -> str | None:
    """The first size that the format's blocks do not divide, or None.

    Groups run along a linear layer's inputs. Blocks also cover outputs, and each output of a fused layer (gate and
    up, or q, k and v) is checked separately (sglang/srt/layers/quantization/fp8_utils.py,
    ``validate_fp8_block_shape``).
    """
    outputs, inputs = form.block
    sizes = {"hidden_size": text["hidden_size"], "intermediate_size": text["intermediate_size"]}
    if text.get("enable_moe_block"):
        sizes["moe_intermediate_size"] = text["moe_intermediate_size"]
    for name, size in sizes.items():
        for block, kind in ((inputs, "group" if outputs == 1 else "block"), (outputs, "block")):
            if block > 1 and size % block:
                return f"{kind}s of {block} do not divide {name} {size}"
    return None
