"""Details of each endpoint's protocol beyond the answer itself: fields that strict clients need, names of errors, exact limits."""

from typing import Any


def serves_gemma4(manager: Any) -> bool:
    """Whether the server of a tokenizer manager serves a Gemma 4; servers of other models are left unchanged."""
    from sglang_gemma4.models.config_files import named_gemma4

    return named_gemma4(manager.model_config.hf_config)
