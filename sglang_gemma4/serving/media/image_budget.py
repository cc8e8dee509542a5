"""The most soft tokens of an image: from the checkpoint, the server's --mm-process-config, or a request's mm_processor_kwargs.

An image gets as many tokens as its shape allows within this budget, whatever its size: small images are enlarged.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

from sglang_gemma4.serving.media import accepted, served

BUDGETS = (70, 140, 280, 560, 1120)
"""The budgets that Gemma 4 was trained with and that transformers' processor accepts."""
NAME = "max_soft_tokens"
_READ = {NAME, "resample", "do_rescale", "rescale_factor", "do_normalize", "image_mean", "image_std", "do_convert_rgb"}
"""Settings that Gemma 4's image processor reads and a server may set. The model fixes patches and their pooling."""
_OF_REQUESTS = ("images_config", "image_max_dynamic_patch", "max_dynamic_patch")
_OF_IMAGES = ("max_dynamic_patch", "max_long_side_pixel", "preprocess_kwargs")
"""Settings for other models' image sizes, in SGLang's request and in its ``ImageData``."""
_READ_BY = ("/v1/chat/completions", "/v1/completions", "/generate", "/invocations")
"""Endpoints whose requests have ``mm_processor_kwargs``."""
_DROPPED_BY = (
    *("/v1/messages", "/v1/messages/count_tokens", "/v1/responses", "/v1/embeddings", "/v1/rerank", "/v1/decisions", "/v1/systemone"),
    *("/encode", "/classify"),
    os.environ.get("SGLANG_OLLAMA_CHAT_ROUTE", "/api/chat"),
    os.environ.get("SGLANG_OLLAMA_GENERATE_ROUTE", "/api/generate"),
    os.environ.get("AIP_PREDICT_ROUTE", "/vertex_generate"),
)
"""Endpoints that accept images and whose requests lack the field. ``/vertex_generate`` has it inside ``parameters``."""
KEYWORD = "sglang_gemma4_soft_tokens"
"""Keyword argument that carries a request's budget through SGLang's processing, which runs in another thread."""
_here: ContextVar[int | None] = ContextVar("image_budget", default=None)
"""The budget of the request that this thread processes; None if the request has none."""


def of_request(request: Any) -> int | None:
    """The budget that a request asks for, or None.

    Raises:
        ValueError: the budget is not in :data:`BUDGETS`, or the request has a setting that is not served or would have no effect.
    """
    if (unread := next(_unread(request), None)) is not None:
        raise ValueError(f"{unread}: Gemma 4's images have no such setting; their size is mm_processor_kwargs.{NAME}, one of {BUDGETS}")
    given = getattr(request, "mm_processor_kwargs", None)
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise ValueError(f"mm_processor_kwargs: {given!r} is no object; send {{{NAME!r}: 280}}")
    nested = given.get("images_kwargs") or {}
    if not isinstance(nested, Mapping):
        raise ValueError(f"mm_processor_kwargs.images_kwargs: {nested!r} is no object; send {{{NAME!r}: 280}}")
    other = [name for name in given if name not in (NAME, "images_kwargs")] + [f"images_kwargs.{name}" for name in nested if name != NAME]
    if other:
        raise ValueError(f"mm_processor_kwargs.{other[0]}: a request may set {NAME} alone; the server's operator has --mm-process-config")
    asked = {repr(part[NAME]): part[NAME] for part in (given, nested) if NAME in part}
    if len(asked) > 1:
        raise ValueError(f"mm_processor_kwargs: {NAME} is {' and '.join(asked)}; send one")
    for value in asked.values():
        if reason := _reason_against_value(value):
            raise ValueError(f"mm_processor_kwargs.{reason}")
        _judge_media(request)
        return int(value)
    return None


def _judge_media(request: Any) -> None:
    """Refuse a budget if the request has media but no image to scale, or ``mm_hashes``, which ignore an image's size.

    Raises:
        ValueError: either is the case.
    """
    brought = accepted.brought(request)
    if brought and not _has_image(getattr(request, "image_data", None)):
        raise ValueError(f"mm_processor_kwargs.{NAME} sets images' size; this request has {' and '.join(brought)}, and no image to scale")
    if getattr(request, "mm_hashes", None):
        raise ValueError(
            f"mm_processor_kwargs.{NAME}: mm_hashes name cache entries of an image whatever its size; leave one of both out of the request"
        )


def _has_image(data: Any) -> bool:
    """Whether there is an image that is not given as features."""
    if isinstance(data, list | tuple):
        return any(map(_has_image, data))
    return data is not None and not (isinstance(data, dict) and "format" in data)


def _unread(request: Any) -> Iterator[str]:
    yield from (name for name in _OF_REQUESTS if getattr(request, name, None) is not None)
    images = getattr(request, "image_data", None)
    for image in images if isinstance(images, list | tuple) else (images,):
        yield from (f"image_url.{name}" for name in _OF_IMAGES if not isinstance(image, str) and getattr(image, name, None) is not None)


def _reason_against_value(value: Any) -> str | None:
    if type(value) is int and value in BUDGETS:
        return None
    return f"{NAME}: {value!r} is none of {', '.join(map(str, BUDGETS))}, the budgets that Gemma 4's images may have"


def dropped_by(path: str, body: Any) -> str | None:
    """Why a body that asks for a budget cannot be served by the endpoint at ``path``, or None."""
    if not served.is_gemma4() or not isinstance(body, Mapping) or body.get("mm_processor_kwargs") is None or path not in _DROPPED_BY:
        return None
    return f"mm_processor_kwargs: {path} has no such field; send images of another budget to {_READ_BY[0]} or {_READ_BY[2]}"


def reason_against(config: Mapping[str, Any] | None) -> str | None:
    """Why a server cannot use the settings for images and videos in --mm-process-config, or None."""
    for kind in ("image", "video"):
        section = (config or {}).get(kind) or {}
        if not isinstance(section, Mapping):
            return f"--mm-process-config: {kind}: {section!r} is no object; give {{{NAME!r}: 280}}"
        if NAME in section and (reason := _reason_against_value(section[NAME])):
            return f"--mm-process-config: {kind}.{reason}"
    other = sorted(set((config or {}).get("image") or {}) - _READ)
    if other:
        return f"--mm-process-config: image.{other[0]} is not read by Gemma 4, or is its checkpoint's; image.{NAME} sets images' size"
    return None


def effective(processor: Any, asked: int | None) -> int:
    """The budget of an image: what the request ``asked`` for, else the server's flag, else the checkpoint's processor."""
    return int(asked or processor.image_config.get(NAME) or processor._processor.image_processor.max_soft_tokens)


def tokens(processor: Any, sizes: Sequence[tuple[int, int]], asked: int | None) -> list[int]:
    """Number of soft tokens of each image of ``sizes``, (height, width) in pixels.

    transformers' ``_get_num_multimodal_tokens`` ignores a server's budget, and keeps a budget that it is given for all later calls.

    Raises:
        ValueError: an image is too long and thin for one token.
    """
    from transformers.models.gemma4.image_processing_gemma4 import get_aspect_ratio_preserving_size

    images = processor._processor.image_processor
    patch, pool = images.patch_size, images.pooling_kernel_size
    most, found = effective(processor, asked) * pool**2, []
    for height, width in sizes:
        rows, columns = get_aspect_ratio_preserving_size(height, width, patch, most, pool)
        found.append((rows // patch) * (columns // patch) // pool**2)
    return found


def process(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Around ``process_and_combine_mm_data``, in the processing thread: set the budget for the hooks inside."""
    token = _here.set(kwargs.pop(KEYWORD, None))
    try:
        return original(*args, **kwargs)
    finally:
        _here.reset(token)


def ask(_processor: Any, _called: Any, _text: Any, _device: Any, kwargs: dict[str, Any]) -> None:
    """Before ``_call_processor``: override the server's budget, which SGLang put into ``kwargs``, with the request's."""
    budget = _here.get()
    if budget is not None and kwargs.get("images"):
        kwargs["images_kwargs"] = {**kwargs.get("images_kwargs", {}), NAME: budget}


def count(original: Callable[..., list[int]], processor: Any, images: Sequence[Any]) -> list[int]:
    """Around ``resolve_image_token_counts``, which SGLang uses to keep the ids of a prompt that came as ids: count by budget."""
    if not hasattr(getattr(processor._processor, "image_processor", None), NAME):
        return original(processor, images)
    return tokens(processor, [size(image) for image in images], _here.get())


def size(image: Any) -> tuple[int, int]:
    """Height and width of Pillow's image or of a tensor of shape [channels, height, width]."""
    return (image.height, image.width) if hasattr(image, "height") else (int(image.shape[-2]), int(image.shape[-1]))
