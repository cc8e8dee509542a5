"""SGLang's LoRA of experts on the CPU, interpreted: ``TEST_INSTRUMENTS="triton_experts:install lora_experts:install"``.

Its kernels are SGLang's; what a CPU lacks is the compiled grouping of rows by adapter and expert, for which SGLang has one in Python,
and torch operators of those names.
"""

from typing import Any


def install() -> None:
    """Group rows as SGLang does on an XPU, and call the kernels as functions."""
    from sglang.kernels.ops.lora.moe import fused_moe_lora_kernel
    from sglang.srt.lora import lora_moe_runners

    module: Any = fused_moe_lora_kernel
    for name in ("fused_moe_lora", "fused_moe_lora_shrink", "fused_moe_lora_expand"):
        setattr(module, name, getattr(module, f"_{name}"))
    lora_moe_runners._is_xpu = True
