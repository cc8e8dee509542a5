"""A head of its own is used where transformers uses it: by config.json's top level, and by the weights."""

from sglang_gemma4.patching import Hook, Patch

PATCH = Patch(
    switch="SGLANG_GEMMA4_CONFIGS",
    why="Stock asks text_config, which is true by default, whether the head is the embedding: lm_head.weight of a checkpoint that says "
    "otherwise at the top level is dropped without a word, and every token is another.",
    evidence="srt/models/gemma4_mm.py:254 · gemma4_unified.py:190 · gemma4_mtp.py:117 · transformers modeling_utils.py:2484 · "
    "crash_repro/untied_head.py",
    remove_when="SGLang's Gemma 4 models ask the top level's tie_word_embeddings.",
    hooks=(
        Hook(
            "sglang.srt.configs.model_config.ModelConfig._config_draft_model",
            "before",
            "sglang_gemma4.models.untied_head:tell",
            "66e29df68d01",
        ),
    ),
)
