"""Hooks on the way of images, videos and audio from a message to features."""

import re
from collections.abc import Callable
from typing import Any

from sglang_gemma4.patching import takes


def forget(_result: Any, *_args: Any, **_kwargs: Any) -> None:
    """After ``flush_cache_after_weight_update``: clear cached embeddings, also without a flush, since new weights change them."""
    from sglang.srt.managers import mm_schedule

    if mm_schedule.embedding_cache is not None:
        mm_schedule.embedding_cache.clear()


def zero_padding_patches(pooler: Any, *_args: Any, **_kwargs: Any) -> None:
    """Before ``Gemma4VisionPooler.forward``: turn on its option to zero padding patches before pooling."""
    pooler.mask_pad_before_pool = True


def encode(positions: str, original: Callable[..., Any], model: Any, items: Any) -> Any:
    """Around ``get_image_feature`` and ``get_video_feature``: encode items in batches.

    ``positions`` is the items' attribute that has the patches' positions.
    """
    if not items:
        return original(model, items)
    from sglang.srt.runtime_context import get_exec

    from sglang_gemma4.models import vision

    if get_exec().deterministic.enable_deterministic_inference:  # an image's features must not depend on the batch
        return original(model, items)

    pictures = vision.collect(model, items, positions)
    if isinstance(pictures, str):
        takes("batched_vision", pictures, "SGLang's tower encodes image by image")
        return original(model, items)
    takes("batched_vision", None)
    return vision.encode(model, pictures)


def pad_nothing(_multiple: int, *_args: Any) -> int:
    """After ``Gemma4SGLangProcessor._get_audio_pad_multiple``: every length is a multiple of 1."""
    return 1


def as_client_error(original: Callable[..., Any], source: Any, *args: Any, **kwargs: Any) -> Any:
    """Around ``load_image``, ``load_video`` and ``load_audio``: turn loading errors into a ValueError.

    Raises:
        ValueError: the file cannot be opened or decoded, the image is larger than Pillow decodes, or the server has no decoder for it
            (torchcodec or decord for videos); SGLang answers with status 400.
    """
    from PIL import Image

    try:
        return original(source, *args, **kwargs)
    except (OSError, Image.DecompressionBombError) as error:
        raise ValueError(f"{_said(error)}; give an http(s) address, a data: address or a file that the server can read") from error
    except ImportError as error:
        name = original.__name__.removeprefix("load_")
        raise ValueError(
            f"this server cannot decode any {name}: {error}; install what it names on the server, or send no {name}"
        ) from error
    except (ValueError, MemoryError, RuntimeError) as error:
        if isinstance(error, ValueError) and (said := _said(error)) != str(error):
            raise ValueError(said) from error
        raise  # reported unchanged; a RuntimeError may also be the GPU's
    except Exception as error:  # decoders raise anything for malformed files: IndexError, struct.error, SyntaxError, ...
        raise ValueError(f"the file cannot be decoded: {type(error).__name__}: {_said(error)}") from error


def _said(error: Exception) -> str:
    """The error's message for a client: without addresses of the server's objects."""
    return re.sub(r"<[\w.]+ object at 0x[0-9a-f]+>", "what was sent", str(error))
