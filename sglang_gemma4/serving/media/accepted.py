"""Which modalities a server takes, and which of them a request brings."""

from typing import Any

KINDS = {"image": "image_data", "video": "video_data", "audio": "audio_data"}
TOWERS = {"image": "vision", "video": "vision", "audio": "audio"}
_NAMES = {"image": "images", "video": "videos", "audio": "audio"}


def brought(request: Any) -> list[str]:
    """The modalities of a request's media: "image", "video", "audio"."""
    return [kind for kind, field in KINDS.items() if _any(getattr(request, field, None))]


def _any(data: Any) -> bool:
    if isinstance(data, list | tuple):
        return any(map(_any, data))
    return data is not None


def taken(config: Any, towers: bool = True) -> list[str]:
    """The modalities that a model takes in addition to text.

    Args:
        config: transformers' config of the whole model.
        towers: whether this server built the towers; False with ``--language-model-only`` or ``--enable-multimodal=false``.
    """
    if not towers:
        return []
    return [kind for kind, tower in TOWERS.items() if getattr(config, f"{tower}_config", None) is not None]


def refusal(request: Any, config: Any, towers: bool, model: str, why_none: str = "") -> str | None:
    """Why this model cannot take a request's media, or None.

    Args:
        model: the model's name, for the message.
        why_none: why there are no towers, such as a flag of the operator.
    """
    takes = taken(config, towers)
    missing = [kind for kind in brought(request) if kind not in takes]
    if not missing:
        return None
    kind = missing[0]
    why = why_none if not towers and why_none else f"the model has no {TOWERS[kind]} tower"
    words = ["text", *(_NAMES[one] for one in takes)]
    given = f"{', '.join(words[:-1])} and {words[-1]}" if takes else "text only"
    remedy = f"send the request without {_NAMES[kind]}, or to a model that takes {_NAMES[kind]}"
    return f"{KINDS[kind]}: {model} takes {given}, no {_NAMES[kind]}: {why}; {remedy}"
