"""Which of SGLang's parsers read a Gemma 4 answer."""

from typing import Any

_PARSER = "gemma4"
_FIELDS = ("reasoning_parser", "tool_call_parser")


def choices(config: Any, arguments: Any) -> dict[str, str]:
    """The parser for each of ``reasoning_parser`` and ``tool_call_parser`` that is not given; empty for other models.

    Args:
        config: the model's Hugging Face configuration.
        arguments: the server's arguments.
    """
    kind = str(getattr(config, "model_type", ""))
    if not kind.startswith("gemma4") or kind.endswith("assistant"):
        return {}
    return {field: _PARSER for field in _FIELDS if getattr(arguments, field) is None}
