"""Images are turned as their EXIF tag says, and only JPEGs that nvJPEG decodes as Pillow does are left to nvJPEG."""

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
"""By the value of the tag, TIFF 6.0 section 8; 1 and other values turn nothing."""
_TELL = ("exif", "Raw profile type exif", "XML:com.adobe.xmp", "xmp")
"""Parts of ``Image.info`` that may hold the tag."""
_YCBCR = (1, 2, 3)
"""Components' numbers in a JPEG of luma and chroma, as JFIF writes them."""
_ADOBE_RGB = 0
"""What Adobe's marker says of components that are red, green and blue."""


def load(original: Callable[..., Any], source: Any, *args: Any, **kwargs: Any) -> Any:
    """Around ``load_image``: within the request's bounds, and upright, which transformers' ``load_image`` makes of each image too.

    Raises:
        ValueError: the image cannot be decoded, or is too large.
    """
    if not served.is_gemma4():
        return original(source, *args, **kwargs)
    image, size = decoding.load_within(original, source, *args, **kwargs)
    return (upright(image), size) if isinstance(image, Image.Image) else (image, size)


def orientation(image: Any) -> int:
    """The value of the EXIF tag, 1 to 8; 1 where there is none or it cannot be read."""
    try:
        found = image.getexif().get(ExifTags.Base.Orientation, 1)
    except Exception:  # Pillow raises whatever a malformed tag leads to
        return 1
    return found if isinstance(found, int) and found in _TURNS else 1


def upright(image: Any) -> Any:
    """A Pillow image without a tag to turn it; the image itself where there is nothing to turn."""
    method = _TURNS.get(orientation(image))
    if method is None:
        return image
    turned = image.transpose(method)
    for name in _TELL:
        turned.info.pop(name, None)
    return turned


def plain_jpeg(on_card: bool, image_bytes: bytes = b"", *_args: Any) -> bool:
    """After ``is_jpeg_with_cuda``: whether nvJPEG decodes the image to the three channels, upright, that Pillow makes of it.

    nvJPEG returns as many channels as a file has, turns nothing, and takes three components for luma and chroma.
    """
    if not on_card or not served.is_gemma4():
        return on_card
    try:
        image: Any = Image.open(io.BytesIO(image_bytes))
        plain = image.mode == "RGB" and image.getexif().get(ExifTags.Base.Orientation, 1) == 1
        plain = plain and image.info.get("adobe_transform") != _ADOBE_RGB and tuple(part[0] for part in image.layer) == _YCBCR
    except Exception:  # Pillow, which decodes it instead, says what is wrong
        return False
    if not plain:
        return False
    decoding.charge_image(*image.size)
    return True
