"""Register this package's draft models in SGLang's model registry."""

from typing import Any

from sglang_gemma4.models.config_files import DSPARK


def register(model_config: Any) -> None:
    """Before ``get_model_architecture``: register the class of a Gemma 4 DSpark draft when ``model_config`` first asks for one.

    Not at the start: importing the registry imports all of SGLang's models, which most processes never need.
    """
    if DSPARK not in (getattr(model_config.hf_config, "architectures", None) or ()):
        return
    from sglang.srt.models.registry import ModelRegistry

    from sglang_gemma4.models.dspark import DSparkForGemma4

    ModelRegistry.models.setdefault(DSPARK, DSparkForGemma4)
