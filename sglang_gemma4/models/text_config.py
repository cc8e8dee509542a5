"""Text-only checkpoints: attention shapes from transformers' per-layer config to SGLang's names."""

from types import SimpleNamespace
from typing import Any

from sglang.srt.utils.hf_transformers.config import _apply_gemma4_attention_overrides


def flatten_root_config(_text_config: Any, config: Any) -> None:
    """After ``get_hf_text_config``, SGLang's first look at a config: a text-only one gets its attention shapes under SGLang's names.

    transformers 5.19 keeps the sliding layers' ``head_dim`` and ``num_key_value_heads`` as the base values and the
    full layers' in ``per_layer_config``; reading a base value then raises. SGLang wants the full layers' under the
    base names and the sliding layers' under ``swa_*``. SGLang does this itself for a config nested under
    ``text_config``, so the root config is handed to that code as if it were nested.

    A config without per-layer values is left as it is: it already has SGLang's names, or all its layers are alike
    (transformers calls such a config heterogeneous too where it states ``per_layer_config: {}``).

    Raises:
        ValueError: a per-layer value that SGLang cannot express (from SGLang's own check).
    """
    heterogeneous = getattr(config, "model_type", None) == "gemma4_text" and config.is_heterogeneous
    if heterogeneous and config._heterogeneity_spec.per_layer_overrides:
        _apply_gemma4_attention_overrides(SimpleNamespace(text_config=config))
