"""Refuses weight formats that SGLang, this package or the GPU cannot serve, before weights are loaded, and names those that work.

It reads a checkpoint's ``quantization_config`` and the flags that choose a format or a kernel for it; neither torch
nor sglang is imported. The reason for each rule is in docs/quantised.md.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sglang_gemma4.diagnostics import quantised_methods, quantised_parts
from sglang_gemma4.diagnostics.preflight import refuse
from sglang_gemma4.diagnostics.quantised_methods import ADA, BLACKWELL, Capability, Machine
from sglang_gemma4.models.config_files import PreflightError
from sglang_gemma4.tiny.quantisation import EXPERT_GROUPS, FORMATS, reason_against_size

AMPERE = (8, 0)
FIELDS = ("quantization", "load_format", "moe_runner_backend", "tp_size")
MARLIN_INPUTS = 64
"""Inputs of Marlin's smallest tile (sglang/kernels/jit/csrc/gemm/marlin/marlin.cuh, ``min_thread_k``)."""
KEPT_GROUPS = (32, 64, 128)
"""Group sizes (inputs per scale) of the dense weights that stay as loaded (models/layers/four_bit_layers.py)."""
LAYOUTS = ("float-quantized", "naive-quantized", "pack-quantized", "mixed-precision")


def check(
    config: Mapping[str, Any],
    arguments: Mapping[str, Any],
    *,
    capability: Capability | None,
    cpu_engine: bool,
    gelu_experts: bool = True,
    keeps_four_bits: bool = False,
) -> None:
    """Check the weight format of a Gemma 4 model as the server was asked to load it.

    Args:
        config: the checkpoint's config, with its ``quantization_config`` if it has one.
        arguments: :data:`FIELDS`.
        capability: the GPU's compute capability, None without a CUDA GPU.
        gelu_experts: the patch quantised_experts is on.
        keeps_four_bits: 4-bit dense weights stay as loaded (the patch four_bit_linear) instead of being repacked for
            Marlin.

    Raises:
        PreflightError: the server would end while loading or at the first batch, or compute wrong values.
    """
    text = config.get("text_config") or config
    moe = bool(text.get("enable_moe_block"))
    given = config.get("quantization_config")
    problems = _problems(given, text, moe, arguments, Machine(capability, cpu_engine), gelu_experts, keeps_four_bits)
    refuse(f"{problem}; {_what_works(text, moe, capability, cpu_engine)}" for problem in problems)


def refuse_gguf(model: str) -> None:
    """Refuse a local GGUF file of Gemma 4: SGLang's loader does not know its tensor names.

    Raises:
        PreflightError: ``model`` is such a file.
    """
    path = Path(model)
    if not path.is_file():
        return
    with path.open("rb") as file:
        head = file.read(65_536)
    if head.startswith(b"GGUF") and b"general.architecture" in head and b"gemma4" in head.split(b"general.architecture", 1)[1][:64]:
        raise PreflightError(
            f"{model} is a GGUF file of Gemma 4, whose tensors SGLang cannot name (gemma4_text is unknown to its GGUF loader); "
            f"give a checkpoint of compressed-tensors: {', '.join(FORMATS)}"
        )


def _what_works(text: Mapping[str, Any], moe: bool, capability: Capability | None, cpu_engine: bool) -> str:
    names = [form.name for form in FORMATS.values() if reason_against_size(text, form) is None]
    if not cpu_engine and capability is not None and capability < ADA:
        names = [name for name in names if not name.startswith("fp8") or not moe]
    online = (
        [] if moe and not cpu_engine and capability is not None and capability < ADA else ["--quantization fp8 of a bfloat16 checkpoint"]
    )
    return f"here work checkpoints of compressed-tensors in {', '.join(names)} (`checkpoint --quantization`)" + "".join(
        f", and {one}" for one in online
    )


def _problems(
    given: Mapping[str, Any] | None,
    text: Mapping[str, Any],
    moe: bool,
    arguments: Mapping[str, Any],
    machine: Machine,
    gelu_experts: bool,
    keeps_four_bits: bool,
) -> Iterator[str]:
    flag, runner, ranks = arguments.get("quantization"), arguments.get("moe_runner_backend"), int(arguments.get("tp_size") or 1)
    if flag == "gguf" or arguments.get("load_format") == "gguf":
        yield "GGUF: SGLang's loader does not know the names of Gemma 4's tensors"
    method = str((given or {}).get("quant_method", "")).lower().replace("_", "-")
    if moe and machine.cuda and (method == "fp8" or (given is None and flag == "fp8")):
        yield from quantised_methods.of_runner(runner, quantised_methods.FALLING_BACK)
    if given is None:
        yield from quantised_methods.of_flag(flag, moe, machine)
        return
    if method != "compressed-tensors":
        yield from quantised_methods.of_fp4_experts(flag, moe, machine)
        yield from quantised_methods.of_checkpoint(given, text, moe, ranks, machine)
        return
    if machine.cpu_engine and given.get("format") not in LAYOUTS:
        yield f"compressed-tensors {given.get('format')}: the CPU reference engine reads {', '.join(LAYOUTS)}"
    layers = int(text["num_hidden_layers"])
    for group in (given.get("config_groups") or {}).values():
        dense = quantised_parts.quantises(group, given, layers, quantised_parts.DENSE)
        experts = moe and quantised_parts.quantises(group, given, layers, quantised_parts.EXPERTS)
        yield from _split_over_ranks(group.get("weights") or {}, text, dense, experts, ranks, machine.cpu_engine, keeps_four_bits)
        yield from _of_group(group, text, experts, runner, machine.capability, machine.cpu_engine, gelu_experts)


def is_reordered(weights: Mapping[str, Any]) -> bool:
    """Whether quantised values are not in the order of their inputs; ``actorder`` "weight" and "static" only order the calibration."""
    return weights.get("actorder") in (True, "group", "dynamic")


def _split_over_ranks(
    weights: Mapping[str, Any], text: Mapping[str, Any], dense: bool, experts: bool, ranks: int, cpu_engine: bool, keeps_four_bits: bool
) -> Iterator[str]:
    """Refuse a rank count that cuts groups or blocks along a GEMM's inputs (compressed_tensors_wNa16.py:128, fp8_utils.py).

    A dense GEMM of 4 or 8 bits that is repacked for Marlin must also split into whole Marlin tiles.
    """
    part = weights.get("group_size") or (weights.get("block_structure") or [0, 0])[1]
    for name in ("intermediate_size",) * dense + ("moe_intermediate_size",) * experts:
        if ranks > 1 and part and part > 0 and text[name] % part == 0 and text[name] % (ranks * part):
            yield f"--tp-size {ranks} splits {name} {text[name]} within a group or block of {part}; choose a number of ranks that does not"
    if not dense:
        return
    each, bits = text["intermediate_size"] // ranks, weights.get("num_bits")
    kept = keeps_four_bits and bits == 4 and not is_reordered(weights) and part in KEPT_GROUPS
    if weights.get("type") == "int" and bits in (4, 8) and each % MARLIN_INPUTS and not kept and not cpu_engine:
        yield (
            f"--tp-size {ranks} leaves a rank {each} of intermediate_size {text['intermediate_size']}, and Marlin multiplies {bits}-bit "
            f"weights by {MARLIN_INPUTS} inputs; choose a number of ranks that leaves a multiple"
        )


def _of_group(
    group: Mapping[str, Any],
    text: Mapping[str, Any],
    moe: bool,
    runner: Any,
    capability: Capability | None,
    cpu_engine: bool,
    gelu_experts: bool,
) -> Iterator[str]:
    weights, inputs = group.get("weights") or {}, group.get("input_activations")
    bits, kind, strategy = weights.get("num_bits"), weights.get("type"), weights.get("strategy")
    said = f"compressed-tensors {kind}{bits} by {strategy}"
    if kind == "int" and bits == 4 and inputs is None:
        yield from _of_int4(weights, text, moe, runner, capability, cpu_engine, gelu_experts)
    elif kind == "float" and bits == 8:
        yield from _of_float8(said, weights, inputs, text, moe, capability, cpu_engine)
        if moe and not cpu_engine:
            yield from quantised_methods.of_runner(runner)
    elif moe and kind == "float" and bits == 4 and strategy == "tensor_group" and inputs is None:
        yield f"{said} without quantised activations: SGLang's NVFP4 experts of such checkpoints go through Marlin, which computes silu"
    elif moe and (kind == "float" or bits == 8 or inputs is not None):
        if not (kind == "float" and bits == 4 and capability is not None and capability >= BLACKWELL and not cpu_engine):
            yield f"{said}: SGLang has no kernel with gelu for such experts on this machine"
    elif cpu_engine and not (kind == "int" and bits == 8 and inputs is None and not is_reordered(weights)):
        yield f"{said}: the CPU reference engine has fp8, and int4 and int8 of weights alone"


def _of_int4(
    weights: Mapping[str, Any],
    text: Mapping[str, Any],
    moe: bool,
    runner: Any,
    capability: Capability | None,
    cpu_engine: bool,
    gelu_experts: bool,
) -> Iterator[str]:
    group, symmetric = weights.get("group_size"), weights.get("symmetric", True)
    said = f"compressed-tensors int4, {'groups of ' + str(group) if group else 'a scale by row'}"
    if not cpu_engine and capability is not None and capability < AMPERE:
        yield f"{said}: SGLang's kernels need compute capability 8.0, this GPU has {_said(capability)}"
    if cpu_engine and is_reordered(weights):
        yield f"{said}: the CPU reference engine reads weights without activation order"
    if not moe:
        return
    if group not in EXPERT_GROUPS or is_reordered(weights):
        skewed = ", inputs in another order (actorder)" if is_reordered(weights) else ""
        yield f"{said}{skewed}: SGLang's one kernel with gelu for 4-bit experts takes groups of 32 or 128 in order"
    elif text["moe_intermediate_size"] % group:
        yield f"{said}: they do not divide the experts' moe_intermediate_size {text['moe_intermediate_size']}"
    if runner not in (None, "auto", "triton"):
        yield f"--moe-runner-backend {runner}: of SGLang's kernels for 4-bit experts only triton's computes gelu; leave the flag out"
    elif runner == "triton" and not symmetric:
        # compressed_tensors.py:932 raises although its kernel takes them; without the flag that kernel is chosen
        # (expert_activation.py)
        yield f"{said}, not symmetric, with --moe-runner-backend triton: SGLang refuses the two together; leave the flag out"
    if not gelu_experts and not cpu_engine:
        yield f"{said}: SGLang's experts assert silu; leave the patch quantised_experts on"


def _of_float8(
    said: str,
    weights: Mapping[str, Any],
    inputs: Mapping[str, Any] | None,
    text: Mapping[str, Any],
    moe: bool,
    capability: Capability | None,
    cpu_engine: bool,
) -> Iterator[str]:
    strategy = weights.get("strategy")
    if not moe:
        return
    if inputs is None:
        yield f"{said} without quantised activations: SGLang has no such experts"
    elif (strategy, inputs.get("strategy")) not in (("tensor", "tensor"), ("channel", "token")) and strategy != "block":
        by = inputs.get("strategy")
        yield f"{said} with activations by {by}: SGLang's experts take tensor with tensor, channel with token, or blocks"
    elif strategy == "channel" and not inputs.get("dynamic"):
        yield f"{said} with static activations: SGLang's experts take such weights with dynamic ones only"
    if not cpu_engine and capability is not None and capability < ADA:
        yield f"{said}: SGLang's fp8 experts need compute capability 8.9, this GPU has {_said(capability)}"
    block = (weights.get("block_structure") or [0, 0])[0]
    for name in ("moe_intermediate_size", "intermediate_size"):
        if strategy == "block" and block and text[name] % block:
            yield f"{said} of {block}: SGLang loads blocks that divide {name}, which is {text[name]}"


def _said(capability: Capability) -> str:
    return ".".join(map(str, capability))
