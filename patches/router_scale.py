"""The MoE router's scale is applied on every path and follows weight updates."""

from sglang_gemma4.patching import Hook, Patch, uses

MODULE = "sglang.srt.model_executor.model_runner_components.weight_updater"
OURS = "sglang_gemma4.models.layers.router"

PATCH = Patch(
    switch="SGLANG_GEMMA4_MODEL_FIXES",
    why="The fold is made once and goes stale with the first weight update, and the native norm ignores it: "
    "experts are chosen by unscaled logits, without any error.",
    evidence="srt/models/gemma4_causal.py:203-212 · srt/layers/layernorm.py:1425 (forward_native)",
    remove_when="Gemma4Router applies its scale on the native path and refolds it in load_weights.",
    uses=(uses.moe,),
    hooks=(
        Hook("sglang.srt.models.gemma4_causal.Gemma4Router.__init__", "after", f"{OURS}:keep_scale_folded", "d1ce082df91c"),
        Hook(f"{MODULE}._model_load_weights_direct", "after", f"{OURS}:refold_after_direct_load", "dbf9195a3202"),
    ),
)
