"""What SGLang's quantisation methods other than compressed-tensors cannot serve of Gemma 4: a checkpoint's, and ``--quantization``.

Each rule was read in SGLang 0.5.23; a bare file name is in ``srt/layers/quantization``. What works there, or may
work, is let through: fp8 experts of ModelOpt, Quark or Fp8Config go to SGLang's Triton kernel, which supports gelu.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sglang_gemma4.models import gptq_config

Capability = tuple[int, int]
ADA, BLACKWELL = (8, 9), (10, 0)
SILU = ("awq", "gptq", "awq-marlin", "gptq-marlin", "auto-round", "moe-wna16", "w4afp8")
"""Methods whose expert kernels compute silu (moe_runner/marlin.py:143, moe_wna16.py:405, moe/cutlass_w4a8_moe.py)."""
FP4_ONLINE = ("modelopt-fp4", "nvfp4-online")
"""Methods that make NVFP4 experts of a bfloat16 or fp8 checkpoint (model_loader/weight_utils.py:383, nvfp4_online.py)."""
FP8_RUNNERS = ("auto", "triton")
"""Runners of fp8 experts that support gelu.

deep_gemm, flashinfer_trtllm, aiter and hpc_ops assert silu. cutlass computes silu without an error
(moe/cutlass_moe.py:285). Others leave the experts without a kernel.
"""
FALLING_BACK = ("flashinfer_cutlass", "flashinfer_cutedsl")
"""Runners that ``Fp8MoEMethod`` replaces by triton (fp8.py:2974)."""
NEEDS_SCALES = {"w8a8-int8": "int8", "w4afp8": "float8"}
"""Flags that cast bfloat16 weights to this type although no checkpoint gives the scales (w8a8_int8.py, w4afp8.py)."""
OTHER_CARDS = ("quark-mxfp4", "quark-int4fp8-moe", "modelslim", "mxfp-w4a8", "mlx-q4", "mlx-q8")
"""Flags whose kernels are for AMD, Ascend or Apple hardware."""


@dataclass(frozen=True)
class Machine:
    """Where the model is to run; ``capability`` is the GPU's compute capability, None without a CUDA GPU."""

    capability: Capability | None
    cpu_engine: bool

    def before(self, capability: Capability) -> bool:
        """Whether the model runs on a CUDA GPU older than ``capability``."""
        return not self.cpu_engine and self.capability is not None and self.capability < capability

    @property
    def cuda(self) -> bool:
        """Whether the model runs on a CUDA GPU."""
        return not self.cpu_engine and self.capability is not None

    @property
    def said(self) -> str:
        """The GPU's compute capability as text, such as "8.9"."""
        return ".".join(map(str, self.capability or ()))


def of_flag(flag: str | None, moe: bool, machine: Machine) -> Iterator[str]:
    """What cannot work of ``--quantization`` for a checkpoint without a ``quantization_config``."""
    if flag in (None, "unquant"):
        return
    said, method = f"--quantization {flag}", str(flag).lower().replace("_", "-")
    if machine.cpu_engine and method != "fp8":
        yield f"{said}: the CPU reference engine quantises to fp8 only"
    yield from _of_any(said, method, moe, machine)
    yield from of_fp4_experts(flag, moe, machine)
    if method == "fp8" and moe and machine.before(ADA):
        yield f"{said}: SGLang's fp8 experts need compute capability 8.9, this GPU has {machine.said}"
    if method in NEEDS_SCALES:
        yield f"{said}: SGLang would copy bfloat16 weights into {NEEDS_SCALES[method]} quantised values without scales"
    if method == "w8a8-fp8" and moe:
        yield f"{said}: SGLang rounds the experts to float8 without a scale (w8a8_fp8.py); --quantization fp8 takes one"
    if method in OTHER_CARDS and machine.cuda:
        yield f"{said}: its kernels are not for CUDA GPUs"


def of_fp4_experts(flag: str | None, moe: bool, machine: Machine) -> Iterator[str]:
    """What cannot work of experts that are quantised to NVFP4 while a bfloat16 or fp8 checkpoint is loaded."""
    if moe and str(flag).lower().replace("_", "-") in FP4_ONLINE and machine.before(BLACKWELL):
        yield f"--quantization {flag}: {_nvfp4_before_blackwell(machine)}"


def of_checkpoint(given: Mapping[str, Any], text: Mapping[str, Any], moe: bool, ranks: int, machine: Machine) -> Iterator[str]:
    """What cannot work of a checkpoint whose ``quant_method`` is not compressed-tensors."""
    method = str(given.get("quant_method", "")).lower().replace("_", "-")
    said = f"quant_method {method}"
    if gptq_config.layout_of(given):
        said += f" with {gptq_config.reason_against(given) or 'gptq_layout or quantised_names left out'}"
    if machine.cpu_engine:
        yield f"{said}: the CPU reference engine reads checkpoints of compressed-tensors only"
    yield from _of_any(said, method, moe, machine)
    nvfp4 = method in ("modelopt", "modelopt-fp4", "nvfp4") and "4" in str(given.get("quant_algo", "4"))
    if moe and (nvfp4 or _has_mixed_nvfp4(method, given)) and machine.before(BLACKWELL):
        yield f"{said} (NVFP4): {_nvfp4_before_blackwell(machine)}"
    if moe and method == "fp8" and machine.before(ADA):
        yield f"{said}: SGLang's fp8 experts need compute capability 8.9, this GPU has {machine.said}"
    block = _block(method, given)
    if block is not None:
        yield from _of_blocks(said, block, text, moe, ranks)
    if method == "quark" and machine.cuda and "fp4" in _quark_types(given):
        yield f"{said} (MXFP4): its GEMMs and experts are AITER's, for AMD's GPUs (quark/schemes/quark_w4a4_mxfp4_moe.py:1063)"


def of_runner(runner: Any, also: tuple[str, ...] = ()) -> Iterator[str]:
    """What cannot work of ``--moe-runner-backend`` for fp8 experts; ``also`` names runners allowed besides :data:`FP8_RUNNERS`."""
    if runner is not None and runner not in (*FP8_RUNNERS, *also):
        yield f"--moe-runner-backend {runner}: of SGLang's kernels for fp8 experts only triton's computes gelu; leave the flag out"


def _of_any(said: str, method: str, moe: bool, machine: Machine) -> Iterator[str]:
    """Checks shared by checkpoint formats and ``--quantization``."""
    if moe and method in SILU:
        yield f"{said}: SGLang's kernels for such experts compute silu, Gemma 4's compute gelu"
    if method == "bitsandbytes":
        # model_loader/loader.py:2871; with another loader the layers lack bnb_quant_state at the first batch
        yield f"{said}: SGLang's loader of bitsandbytes does not know Gemma 4's layers"
    if method == "mxfp4" and machine.cuda:
        # mxfp4.py:363 gives linear layers a method only on AMD GPUs; linear.py:482 asserts one
        yield f"{said}: SGLang has no MXFP4 for linear layers on CUDA GPUs"
    if method == "mxfp8" and moe and machine.cuda:
        # fp8.py:2962 chooses triton, which moe_runner/triton.py:120 refuses for MXFP8; its other runners compute silu
        yield f"{said}: SGLang's kernels for MXFP8 experts compute silu, Gemma 4's compute gelu"
    elif method == "mxfp8" and machine.before(BLACKWELL):
        yield f"{said}: SGLang's MXFP8 needs compute capability 10.0, this GPU has {machine.said}"


def _nvfp4_before_blackwell(machine: Machine) -> str:
    return f"before Blackwell SGLang's NVFP4 experts go through Marlin, which computes silu; this GPU has {machine.said}"


def _has_mixed_nvfp4(method: str, given: Mapping[str, Any]) -> bool:
    """Whether ModelOpt's mixed precision has experts in NVFP4."""
    if method not in ("modelopt", "modelopt-mixed") or given.get("quant_algo") != "MIXED_PRECISION":
        return False
    layers = given.get("quantized_layers") or {}
    return any("experts" in name and "NVFP4" in str((layer or {}).get("quant_algo", "")) for name, layer in layers.items())


def _quark_types(given: Mapping[str, Any]) -> set[str]:
    """The dtypes of the weights that Quark quantised."""
    layers = [given.get("global_quant_config") or {}, *(given.get("layer_quant_config") or {}).values()]
    return {str((layer.get("weight") or {}).get("dtype")) for layer in layers if isinstance(layer, Mapping)}


def _block(method: str, given: Mapping[str, Any]) -> tuple[int, int] | None:
    """(outputs, inputs) of the block that shares a scale, or None if the format has no blocks."""
    if method in ("fp8", "blockwise-int8"):
        found = given.get("weight_block_size")
    elif method == "quark":
        found = ((given.get("global_quant_config") or {}).get("weight") or {}).get("block_size")
    else:
        return None
    return (int(found[0]), int(found[1])) if isinstance(found, list | tuple) and len(found) == 2 else None


def _of_blocks(said: str, block: tuple[int, int], text: Mapping[str, Any], moe: bool, ranks: int) -> Iterator[str]:
    """Refuse blocks that do not divide gate's and up's outputs, or a rank's share of an FFN (fp8.py:1588, fp8_utils.py:2852)."""
    outputs, inputs = block
    for name in ("moe_intermediate_size", "intermediate_size") if moe else ("intermediate_size",):
        if outputs > 1 and text[name] % outputs:
            yield f"{said} in blocks of {outputs}: SGLang loads blocks that divide {name}, which is {text[name]}"
        elif ranks > 1 and any(size > 1 and text[name] % (ranks * size) for size in (outputs, inputs)):
            yield f"--tp-size {ranks} splits {name} {text[name]} within a block of {outputs}; choose a number of ranks that does not"
