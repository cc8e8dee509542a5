"""Attention runs data parallel: each group of ranks attends to requests of its own (--attn-dp-size)."""

from sglang_gemma4.patching import Hook, Patch, uses

GEMMA4 = "sglang.srt.models.gemma4_causal"
OURS = "sglang_gemma4.models.attention_groups"

PATCH = Patch(
    switch="SGLANG_GEMMA4_MODEL_FIXES",
    why="Stock splits heads over all ranks but KV pools over those of one group, and adds one group's residual to the rows of all.",
    evidence="srt/models/gemma4_causal.py:323, 744-834 · srt/layers/layer_boundary/prepare.py (_reduce_update_read_dp_gather) · "
    "tests/engine/test_parallel_forms.py",
    remove_when="Gemma4Attention splits by attn_tp_size and Gemma4DecoderLayer gathers what its FFN adds to.",
    uses=(uses.data_parallel_attention,),
    hooks=(
        Hook(f"{GEMMA4}.Gemma4Attention.__init__", "around", f"{OURS}:build_attention", "10dd9517605c"),
        Hook(f"{GEMMA4}.Gemma4Attention.forward", "around", f"{OURS}:attend", "35891e1c7d9e"),
        Hook("sglang.srt.models.gemma4_vision.Gemma4VisionEncoder.__init__", "around", f"{OURS}:build_tower", "e5ff87d79ee5"),
        Hook("sglang.srt.models.gemma4_audio.Gemma4AudioEncoder.__init__", "around", f"{OURS}:build_tower", "469e1c4dd179"),
        Hook(f"{GEMMA4}.Gemma4DecoderLayer._next_stream", "around", f"{OURS}:next_stream", "1c1c4b6f8ca3"),
    ),
)
