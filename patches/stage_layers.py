"""A pipeline stage holds the KV of its own layers."""

from sglang_gemma4.patching import Hook, Patch, uses

MODULE = "sglang.srt.model_executor.model_runner_components.layer_setup"
OURS = "sglang_gemma4.memory.stage_layers"

PATCH = Patch(
    switch="SGLANG_GEMMA4_POOL_SIZES",
    why="Stock looks for a stage's range on a class that has none: with --pp-size 2 each stage holds the KV of all layers.",
    evidence="srt/model_executor/model_runner_components/layer_setup.py:233 · tests/engine/test_parallel_forms.py",
    remove_when="Gemma4ForConditionalGeneration and Gemma4ForCausalLM have start_layer and end_layer.",
    uses=(uses.pipeline,),
    hooks=(
        Hook(f"{MODULE}._resolve_pp_layer_range", "around", f"{OURS}:own_range", "f476010c0ee1"),
        Hook(f"{MODULE}._resolve_local_hybrid_swa_layer_ids", "after", f"{OURS}:with_both_types", "e1baec5d7048"),
    ),
)
