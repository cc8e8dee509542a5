"""Answers of /api/tags and /api/show about the served model."""

from typing import Any


def family(config: Any) -> str:
    """The model type in the model's configuration, or "unknown"."""
    return str(getattr(config, "model_type", "") or "unknown")


def details(config: Any) -> dict[str, Any]:
    """Ollama's ``details``."""
    named = family(config)
    return {"parent_model": "", "format": "sglang", "family": named, "families": [named], "parameter_size": "", "quantization_level": ""}


def tags(name: str, config: Any, since: str) -> dict[str, Any]:
    """The answer of /api/tags: one model, and when the server began to serve it."""
    digest = "sha256:" + "0" * 64
    return {"models": [{"name": name, "model": name, "modified_at": since, "size": 0, "digest": digest, "details": details(config)}]}


def show(name: str, model: Any, since: str, tools: bool, thinks: bool) -> dict[str, Any]:
    """The answer of /api/show.

    Args:
        model: SGLang's ModelConfig.
        tools: whether calls are parsed.
        thinks: whether thoughts are parsed.
    """
    config = model.hf_config
    named, inner = family(config), getattr(config, "text_config", None) or config
    served = {"completion": True, "vision": bool(model.is_multimodal), "tools": tools, "thinking": thinks}
    sizes = {"block_count": "num_hidden_layers", "embedding_length": "hidden_size", "attention.head_count": "num_attention_heads"}
    found = {f"{named}.{word}": getattr(inner, attribute) for word, attribute in sizes.items() if hasattr(inner, attribute)}
    return {
        "license": "", "modelfile": f"FROM {name}\nPARAMETER num_ctx {model.context_len}\n", "parameters": f"num_ctx {model.context_len}",
        "template": "", "modified_at": since, "details": details(config), "capabilities": [word for word, has in served.items() if has],
        "model_info": {"general.architecture": named, "general.basename": name, f"{named}.context_length": model.context_len, **found},
    }  # fmt: skip
