"""Experts by SGLang's Triton kernels on the CPU, interpreted, as a GPU runs them:
``TEST_INSTRUMENTS=triton_experts:install``.

All of it is SGLang's: the runner, its two GEMMs, the activation it takes by name, the sum. What a CPU lacks is the
grouping of rows and the name of a GPU.
"""

import inspect
from typing import Any

import torch


def install() -> None:
    """Send unquantised experts through a GPU's path."""
    from sglang.srt.layers.moe.moe_runner.triton_utils import fused_moe, fused_moe_triton_config
    from sglang.srt.layers.quantization.unquant import UnquantizedFusedMoEMethod

    fused_moe.moe_align_block_size = rows_by_expert
    fused_moe_triton_config.get_device_name = lambda: "no GPU"  # whose tiles are SGLang's default ones
    for name in ("inplace_fused_experts", "outplace_fused_experts"):
        setattr(fused_moe, name, inspect.unwrap(getattr(fused_moe, name)))  # as torch operators they are registered for CUDA alone
    UnquantizedFusedMoEMethod.forward_cpu = UnquantizedFusedMoEMethod.forward_cuda
    UnquantizedFusedMoEMethod.forward_native = UnquantizedFusedMoEMethod.forward_cuda


def rows_by_expert(ids: torch.Tensor, size: int, experts: int, *_: object, **__: object) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What SGLang's ``moe_align_block_size`` returns: rows by expert in blocks of ``size``, each block's expert, all blocks' rows."""
    flat = ids.flatten()
    chosen = [(expert, (flat == expert).nonzero().flatten().int()) for expert in range(experts)]
    blocks = [(expert, block) for expert, rows in chosen if rows.numel() for block in rows.split(size)]
    padded = [torch.nn.functional.pad(block, (0, size - block.numel()), value=flat.numel()) for _, block in blocks]
    return torch.cat(padded), torch.tensor([expert for expert, _ in blocks], dtype=torch.int32), torch.tensor([size * len(blocks)]).int()


def install_quantised() -> None:
    """Send 4-bit experts of compressed-tensors through it too, with their own rearrangement and scheme instead of the
    CPU engine's GEMMs."""
    import triton.language as tl
    from sglang.srt.layers.moe.moe_runner.triton_utils import fused_moe
    from sglang.srt.layers.quantization.compressed_tensors.compressed_tensors import CompressedTensorsFusedMoEMethod

    from sglang_gemma4.cpu import quantised

    install()
    product = fused_moe.invoke_fused_moe_kernel  # it multiplies in bfloat16 or float16, which the interpreter has no right product for
    fused_moe.invoke_fused_moe_kernel = lambda *args, **kwargs: product(*args, **{**kwargs, "compute_type": tl.float32})
    stock = CompressedTensorsFusedMoEMethod.process_weights_after_loading
    setattr(quantised, "experts_of_checkpoint", lambda _original, method, layer: inspect.unwrap(stock)(method, layer))  # noqa: B010


def adapters() -> None:
    """After :func:`install`: SGLang's LoRA of experts too.

    A CPU lacks the compiled grouping of rows by adapter and expert, for which SGLang has one in Python, and torch operators of those names.
    """
    from sglang.kernels.ops.lora.moe import fused_moe_lora_kernel
    from sglang.srt.lora import lora_moe_runners

    module: Any = fused_moe_lora_kernel
    for name in ("fused_moe_lora", "fused_moe_lora_shrink", "fused_moe_lora_expand"):
        setattr(module, name, getattr(module, f"_{name}"))
    lora_moe_runners._is_xpu = True
