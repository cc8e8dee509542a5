"""Makes ``text_config``, which SGLang's models ask whether the head is the embedding, agree with transformers."""

from typing import Any

from sglang_gemma4.checkpoint import PreflightError
from sglang_gemma4.checkpoint.heads import tied
from sglang_gemma4.checkpoint.safetensors_files import stored_at
from sglang_gemma4.models.config_files import named_gemma4


def tell(model_config: Any) -> None:
    """Before ``ModelConfig._config_draft_model``: put what transformers decides into all parts of a Gemma 4's config."""
    config = model_config.hf_config
    if not named_gemma4(config):
        return
    try:
        stored = stored_at(str(model_config.model_path), model_config.revision)
    except PreflightError:
        stored = None  # the patch whole_checkpoints reports it
    value = tied({"tie_word_embeddings": getattr(config, "tie_word_embeddings", True)}, stored)
    for part in (config, getattr(config, "text_config", None)):
        if part is not None:
            part.tie_word_embeddings = value
