"""Turns images as their EXIF tag says, and leaves to nvJPEG only JPEGs that it decodes as Pillow does."""

import io
from collections.abc import Callable
from typing import Any

from PIL import ExifTags, Image

from sglang_gemma4.serving.media import decoding, served

_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""Transposition by the value of the orientation tag (TIFF 6.0 section 8); 1 and other values turn nothing."""
_TELL = ("exif", "Raw profile type exif", "XML:com.adobe.xmp", "xmp")
"""Parts of ``Image.info`` that may hold the tag."""
_YCBCR = (1, 2, 3)
"""Component ids in a JPEG of luma and chroma, as in JFIF."""
_ADOBE_RGB = 0
"""Value of Adobe's marker for components that are red, green and blue."""


def load(original: Callable[..., Any], source: Any, *args: Any, **kwargs: Any) -> Any:
    """Around ``load_image``: an image within the request's limits, and upright, as transformers' ``load_image`` returns it too.

    Raises:
        ValueError: the image cannot be decoded, or is too large.
    """
    if not served.is_gemma4():
        return original(source, *args, **kwargs)
    image, size = decoding.load_within(original, source, *args, **kwargs)
    return (upright(image), size) if isinstance(image, Image.Image) else (image, size)


def orientation(image: Any) -> int:
    """The value of the EXIF orientation tag, 1 to 8; 1 if there is none or it cannot be read."""
    try:
        found = image.getexif().get(ExifTags.Base.Orientation, 1)
    except Exception:  # Pillow may raise any exception for a malformed tag
        return 1
    return found if isinstance(found, int) and found in _TURNS else 1


def upright(image: Any) -> Any:
    """A Pillow image turned upright, without the tag; the image itself if it is upright already."""
    method = _TURNS.get(orientation(image))
    if method is None:
        return image
    turned = image.transpose(method)
    for name in _TELL:
        turned.info.pop(name, None)
    return turned


def plain_jpeg(on_card: bool, image_bytes: bytes = b"", *_args: Any) -> bool:
    """After ``is_jpeg_with_cuda``: whether nvJPEG decodes the image to the same three upright channels as Pillow.

    nvJPEG returns as many channels as the file has, turns nothing, and assumes that three components are luma and chroma.
    """
    if not on_card or not served.is_gemma4():
        return on_card
    try:
        image: Any = Image.open(io.BytesIO(image_bytes))
        plain = image.mode == "RGB" and image.getexif().get(ExifTags.Base.Orientation, 1) == 1
        plain = plain and image.info.get("adobe_transform") != _ADOBE_RGB and tuple(part[0] for part in image.layer) == _YCBCR
    except Exception:  # Pillow decodes it instead and reports what is wrong
        return False
    if not plain:
        return False
    decoding.charge_image(*image.size)
    return True
