"""A media file that is not there, too large, or that nothing decodes, is a 400, not a 500."""

from collections.abc import Callable
from typing import Any

from sglang_gemma4.patching import Hook, Patch, uses

COMMON = "sglang.srt.utils.common"


def as_client_error(original: Callable[..., Any], source: Any, *args: Any, **kwargs: Any) -> Any:
    """Around ``load_image``, ``load_video`` and ``load_audio``.

    Raises:
        ValueError: the file cannot be opened, the image is larger than Pillow decodes, what is in it ends its decoder, or the server has no
            decoder for it (torchcodec or decord for videos); SGLang answers it with status 400.
    """
    from PIL import Image

    try:
        return original(source, *args, **kwargs)
    except (OSError, Image.DecompressionBombError) as error:
        raise ValueError(f"{error}; give an http(s) address, a data: address or a file that the server can read") from error
    except ImportError as error:
        name = original.__name__.removeprefix("load_")
        raise ValueError(
            f"this server cannot decode any {name}: {error}; install what it names on the server, or send no {name}"
        ) from error
    except (ValueError, MemoryError, RuntimeError):
        raise  # told as they are; RuntimeError: also a card's
    except Exception as error:  # decoders end malformed files with what comes: IndexError, struct.error, SyntaxError, ...
        raise ValueError(f"the file cannot be decoded: {type(error).__name__}: {error}") from error


PATCH = Patch(
    switch="SGLANG_GEMMA4_MEDIA_FIXES",
    why="Stock answers a file that is not there, an image too large to decode, or a video where no decoder is installed, with status 500 "
    "and a traceback in the log.",
    evidence="srt/utils/common.py:1900 (CLIENT_MEDIA_EXCEPTIONS), 2260 (ImportError) · "
    "srt/multimodal/processors/base_processor.py:1049-1058",
    remove_when="SGLang counts OSError among its client's media errors.",
    uses=(uses.media,),
    hooks=tuple(
        Hook(f"{COMMON}.{name}", "around", as_client_error, declared)
        for name, declared in (("load_image", "eb18e23c5715"), ("load_video", "8b77a610a2bb"), ("load_audio", "a6f425c25d8f"))
    ),
)
