"""Layers that a quantised checkpoint leaves alone, such as vision towers and routers, are loaded as they are."""

from sglang_gemma4.patching import Hook, Patch, uses

OURS = "sglang_gemma4.models.quantised_checkpoint"
MODELS = "sglang.srt.models"

PATCH = Patch(
    switch="SGLANG_GEMMA4_CONFIGS",
    why="Stock compares ignore lists with its own names: the tower's q, k, v, gate and up (there ….q_proj.linear) become quantised layers "
    "without weights, K = V layers raise, and quantised routers are read without their scales.",
    evidence="srt/layers/quantization/compressed_tensors/utils.py:27-77 · srt/layers/clippable_linear.py:142, 266 · gemma4_causal.py:198 · "
    "crash_repro/quantised_vision.py, quantised_k_is_v.py, quantised_router.py, quantised_zero_points.py",
    remove_when="SGLang maps the names of a checkpoint's quantization_config to its Gemma 4 modules.",
    uses=(uses.quantised,),
    hooks=(
        Hook("sglang.srt.model_loader.loader._get_quantization_config", "after", f"{OURS}:map_names", "458ef27e0f80"),
        Hook(f"{MODELS}.gemma4_mm.Gemma4ForConditionalGeneration.load_weights", "around", f"{OURS}:load", "3c1f7137a36c"),
        Hook(f"{MODELS}.gemma4_unified.Gemma4UnifiedForConditionalGeneration.load_weights", "around", f"{OURS}:load", "1e2831320c81"),
        Hook(f"{MODELS}.gemma4_causal.Gemma4ForCausalLM.load_weights", "around", f"{OURS}:load", "0fc7fdc87d32"),
    ),
)
