"""Adapters."""

from functools import partial

from sglang_gemma4.models import lora_adapters
from sglang_gemma4.patching import Part, Seam, uses
from sglang_gemma4.speculative import adapters

LORA = "sglang.srt.lora"

PARTS = (
    Part(
        name="lora",
        does="LoRA adapters (--lora-paths) work: per-layer sizes, layers without K and V, and the dense FFN of MoE layers.",
        switch="SGLANG_GEMMA4_LORA",
        why="Stock sizes all layers by attributes that Gemma 4's config does not have, and expects a v_proj in each layer. It mistakes a "
        "MoE layer's dense FFN for its experts. For the text-only class it supports none of this.",
        evidence="srt/models/gemma4_mm.py:1104-1131 · srt/lora/lora.py:300-320 (KeyError: v_proj) · srt/lora/mem_pool.py:586-608",
        remove_when="Gemma 4's classes give SGLang each layer's sizes, and adapters may lack projections.",
        uses=(uses.lora,),
    ),
    Part(
        name="lora_mtp",
        does="LoRA works together with MTP: the target verifies with adapters, the draft has none.",
        switch="SGLANG_GEMMA4_LORA",
        why="Stock refuses LoRA with Gemma 4's MTP. But verify steps have one width for all requests, which is all that SGLang's LoRA "
        "needs.",
        evidence="srt/arg_groups/lora_hook.py:246-264 · srt/lora/utils.py:489 (verify) · srt/model_executor/model_runner.py:838 (no draft)",
        remove_when="SGLang lists FROZEN_KV_MTP among the algorithms that LoRA supports.",
        uses=(uses.lora, uses.mtp),
    ),
)

SEAMS = (
    Seam(f"{LORA}.lora_manager.LoRAManager.init_state", "around", lora_adapters.attach_targets, "7e6d316eac75", parts=("lora",)),
    Seam(
        f"{LORA}.lora_manager.LoRAManager.validate_new_adapter",
        "before",
        lora_adapters.check_adapter,
        "f8db1466e422",
        parts=("lora",),
    ),
    Seam(
        f"{LORA}.lora_manager.LoRAManager.init_lora_shapes",
        "after",
        lora_adapters.settle_shapes,
        "748593f47e69",
        parts=("lora",),
    ),
    Seam(f"{LORA}.lora.LoRAAdapter._process_weight", "before", lora_adapters.check_weight, "df2c2c5142f2", parts=("lora",)),
    Seam(f"{LORA}.lora.LoRAAdapter._normalize_weights", "around", lora_adapters.fuse_weights, "57b5a9dad6b1", parts=("lora",)),
    Seam(f"{LORA}.mem_pool.LoRAMemoryPool.init_buffers", "around", lora_adapters.make_buffers, "5d822c288dcf", parts=("lora",)),
    Seam(
        f"{LORA}.mem_pool.LoRAMemoryPool.get_lora_A_shape",
        "around",
        partial(lora_adapters.shape, "A"),
        "98cab21da840",
        parts=("lora",),
    ),
    Seam(
        f"{LORA}.mem_pool.LoRAMemoryPool.get_lora_B_shape",
        "around",
        partial(lora_adapters.shape, "B"),
        "356de54a3149",
        parts=("lora",),
    ),
    Seam(
        "sglang.srt.arg_groups.lora_hook.check_lora_speculative_compatibility",
        "around",
        adapters.allow,
        "7dd959b96894",
        parts=("lora_mtp",),
    ),
)
