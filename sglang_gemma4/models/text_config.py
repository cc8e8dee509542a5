"""Text-only checkpoints: attention shapes from transformers' per-layer config to SGLang's names."""

from types import SimpleNamespace
from typing import Any

from sglang.srt.utils.hf_transformers.config import _apply_gemma4_attention_overrides

TEXT_MODEL_TYPE = "gemma4_text"


def flatten_text_only(config: Any) -> None:
    """Set a text-only config's attention shapes under SGLang's names, in place.

    transformers 5.19 keeps the sliding layers' ``head_dim`` and ``num_key_value_heads`` as the base values and the
    full layers' in ``per_layer_config``; reading a base value then raises. SGLang wants the full layers' under the
    base names and the sliding layers' under ``swa_*``. SGLang does this itself for a config nested under
    ``text_config``, so the root config is handed to that code as if it were nested.

    A config without per-layer values is left as it is: it already has SGLang's names, or all its layers are alike
    (transformers calls such a config heterogeneous too where it states ``per_layer_config: {}``).

    Raises:
        ValueError: a per-layer value that SGLang cannot express (from SGLang's own check).
    """
    if getattr(config, "model_type", None) != TEXT_MODEL_TYPE or not config.is_heterogeneous:
        return
    if not config._heterogeneity_spec.per_layer_overrides:
        return
    _apply_gemma4_attention_overrides(SimpleNamespace(text_config=config))
