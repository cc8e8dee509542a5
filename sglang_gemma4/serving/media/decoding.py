"""Images and sounds are decoded within bounds, which are judged by their headers: a file of a few kB may stand for gigabytes.

=====================  ========================================================================================================
an image               :data:`IMAGE_PIXELS`
images of a request    :data:`REQUEST_PIXELS`, each counted as at least :data:`LEAST_PIXELS`, to which a small one is enlarged
a sound                :data:`SOUND_SECONDS`; :data:`RESAMPLING` entries in the filter for its sample rate
sounds of a request    :data:`REQUEST_SAMPLES` over all channels; :data:`REQUEST_SECONDS`, each counted as the longest, to which
                       the others are filled up
frames of a video      :data:`VIDEO_PIXELS`
videos of a request    :data:`REQUEST_VIDEO_PIXELS` over the frames that are shown
=====================  ========================================================================================================
"""

import io
import math
import threading
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field, is_dataclass, replace
from typing import Any

from sglang_gemma4.serving.media import base64_text, served

RATE = 16_000
"""Samples a second that SGLang loads sounds with."""
IMAGE_PIXELS = 50_000_000
"""200 MB decoded. Python's lock is held while so much is freed, and the event loop waits for it."""
REQUEST_PIXELS = 4 * IMAGE_PIXELS
LEAST_PIXELS = 500_000
SOUND_SECONDS = 300.0
"""Ten times what Gemma 4 is documented for."""
REQUEST_SECONDS = 3 * SOUND_SECONDS
REQUEST_SAMPLES = 60_000_000
"""Decoded in float64: 480 MB."""
RESAMPLING = 2**24
VIDEO_PIXELS = 32 * 4096 * 2304
REQUEST_VIDEO_PIXELS = 2 * VIDEO_PIXELS
"""1.8 GB decoded: nine videos of 1920 x 1080 pixels."""
TAIL = 3 * RATE // 10
"""Samples past the longest sound that are cut: 0.3 s, more than the silence with which MP3 encoders fill a file."""
_MP3_HEAD = 1 << 16
"""Bytes in which the count of an MP3's frames is looked for."""
PROGRAMS = ("EPS", "WMF", "EMF")
"""Image formats that Pillow has other programs draw."""


@dataclass
class Budget:
    """What one request may still decode.

    Attributes:
        longest: samples of 16 kHz of a sound that the model takes; None where it is not known, or longer sounds are cut.
    """

    pixels: int = REQUEST_PIXELS
    samples: int = REQUEST_SAMPLES
    longest: int | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def take_image(self, width: int, height: int) -> None:
        """Judge an image of this size, in pixels.

        Raises:
            ValueError: it is empty or too large, or the request's images together are.
        """
        if width < 1 or height < 1:
            raise ValueError(f"the image is {width} x {height} pixels: it is empty")
        if width * height > IMAGE_PIXELS:
            raise ValueError(f"the image is {width} x {height} pixels and an image may have {IMAGE_PIXELS} pixels; send a smaller one")
        with self._lock:
            self.pixels -= max(width * height, LEAST_PIXELS)
            if self.pixels < 0:
                raise ValueError(
                    f"the images of one request may have {REQUEST_PIXELS} pixels together, each counted as at least {LEAST_PIXELS}; send "
                    "fewer or smaller ones"
                )

    def take_sound(self, frames: int, channels: int, rate: int, exact: bool = True) -> None:
        """Judge a sound of ``frames`` samples in each channel, at ``rate`` a second; where that is an estimate, not against the model.

        Raises:
            ValueError: it is empty or too long, its rate cannot be brought to 16 kHz, or the request's sounds together are too long.
        """
        if frames < 1 or channels < 1 or rate < 1:
            raise ValueError(f"the sound has {frames} samples in {channels} channels at {rate} Hz: it is empty")
        if exact and self.longest is not None and frames * RATE > (self.longest + TAIL) * rate:
            raise ValueError(too_long("the sound", frames / rate, self.longest))
        if frames / rate > SOUND_SECONDS:
            raise ValueError(f"the sound is {frames / rate:.1f} s long and a sound may be {SOUND_SECONDS:.0f} s; send a shorter piece")
        shared = math.gcd(rate, RATE)
        if (rate // shared) * (RATE // shared) > RESAMPLING:
            raise ValueError(
                f"the sound has {rate} samples a second, for which a filter to {RATE} would need {(rate // shared) * (RATE // shared)} "
                f"entries and may have {RESAMPLING}; send it at a usual rate such as 16000, 44100 or 48000"
            )
        with self._lock:
            self.samples -= frames * channels
            if self.samples < 0:
                raise ValueError(f"the sounds of one request may have {REQUEST_SAMPLES} samples together; send fewer or shorter ones")


def too_long(sound: str, seconds: float, longest: int) -> str:
    """Why a sound of so many seconds is refused by a model that takes ``longest`` samples of 16 kHz."""
    return (
        f"{sound} is {seconds:.1f} s long and this model takes {longest / RATE:.0f} s; send it in pieces, or start the server with "
        '--mm-process-config \'{"audio": {"truncation": true}}\' to have it cut there'
    )


class Address(str):
    """The address of an image or a sound, which also knows the budget of its request: SGLang hands only the address to its decoders."""

    budget: Budget

    @classmethod
    def within(cls, item: Any, budget: Budget) -> Any:
        """``item`` with its address as one of these; what has no address, such as a decoded image, as it is."""
        if isinstance(item, str):
            address = cls(item)
            address.budget = budget
            return address
        url = getattr(item, "url", None)
        if isinstance(url, str) and is_dataclass(item) and not isinstance(item, type):
            return replace(item, url=cls.within(url, budget))
        return item


_budget: ContextVar[Budget | None] = ContextVar("media_budget", default=None)
"""Of the medium that this thread loads."""
_charged: ContextVar[bool] = ContextVar("media_charged", default=False)
"""Whether the image that this thread loads has been charged to its budget: Pillow decodes what nvJPEG was given and rejects."""


def load_within(load: Callable[..., Any], source: Any, *args: Any, **kwargs: Any) -> Any:
    """Call SGLang's ``load_image`` or ``load_audio``, whose parts below read the budget that ``source`` brings."""
    token = _budget.set(getattr(getattr(source, "url", source), "budget", None) or Budget())
    charged = _charged.set(False)
    try:
        return load(source, *args, **kwargs)
    finally:
        _charged.reset(charged)
        _budget.reset(token)


def of_this_thread() -> Budget:
    return _budget.get() or Budget()


def judge_image(image: Any) -> None:
    """Before ``_fully_load_pil_image``, which decodes an image of which only the header was read.

    Raises:
        ValueError: it is empty, too large, or of a format that another program would draw.
    """
    if not served.is_gemma4():
        return
    if image.format in PROGRAMS:
        raise ValueError(f"images of format {image.format} are not decoded; send PNG, JPEG or WebP")
    charge_image(*image.size)


def charge_image(width: int, height: int) -> None:
    """Charge the image that this thread loads to its request, once.

    Raises:
        ValueError: it is empty or too large, or the request's images together are.
    """
    if not _charged.get():
        of_this_thread().take_image(width, height)
        _charged.set(_budget.get() is not None)


def load_sound_within(load: Callable[..., Any], source: Any, *args: Any, **kwargs: Any) -> Any:
    """Around ``load_audio``, as :func:`load_within`: a sound of bounded length, float32 or float64 of shape [samples].

    Raises:
        ValueError: it cannot be decoded, is empty or too long, or holds what is no number.
    """
    if not served.is_gemma4():
        return load(source, *args, **kwargs)
    import numpy

    def load_judged(source: Any, *args: Any, **kwargs: Any) -> Any:
        source = _fetched(source)
        _judge_sound(source)
        return load(source, *args, **kwargs)

    samples = load_within(load_judged, source, *args, **kwargs)
    if not samples.size:
        raise ValueError("the sound has no samples: it is empty")
    if not numpy.isfinite(samples).all():
        raise ValueError("the sound holds samples that are infinite or no numbers")
    return samples


def _fetched(source: Any) -> Any:
    """The bytes of an http(s) or data: address or of long base64, or what else it was."""
    import os

    from sglang.srt.utils import common

    if not isinstance(source, str):
        return source
    if source.startswith(("http://", "https://")):
        return common.download_remote_media(source, timeout=int(os.getenv("REQUEST_TIMEOUT", "5")))
    data = source if source.startswith("data:") else base64_text.respelled(source)
    return source if data is None else _decoded(data)


def _decoded(data: str) -> bytes:
    import pybase64

    try:
        return pybase64.b64decode(data.partition(",")[2], validate=True)
    except ValueError:
        made = base64_text.respelled(data)
        if made is None:
            raise
        return pybase64.b64decode(made.partition(",")[2], validate=True)


def _judge_sound(source: Any) -> None:
    """Judge a file that soundfile reads by its header. Of others PyAV counts while it decodes, and torchcodec reads the header."""
    import soundfile  # type: ignore[import-untyped]
    from sglang.srt.multimodal.audio_from_video import is_audio_container

    if not isinstance(source, bytes | str) or (isinstance(source, bytes) and is_audio_container(source[:16])):
        return
    try:
        found = soundfile.info(io.BytesIO(source) if isinstance(source, bytes) else source.removeprefix("file://"))
    except soundfile.LibsndfileError as error:
        _judge_other_sound(source, error)
    else:
        of_this_thread().take_sound(found.frames, found.channels, found.samplerate, found.format != "MP3" or _counts_its_frames(source))


def _counts_its_frames(source: bytes | str) -> bool:
    """Whether an MP3 says how long it is; of others libsndfile takes the bit rate of the first part for that of all."""
    if isinstance(source, str):
        with open(source.removeprefix("file://"), "rb") as file:
            source = file.read(_MP3_HEAD)
    return any(tag in source[:_MP3_HEAD] for tag in (b"Xing", b"Info", b"VBRI"))


def _judge_other_sound(source: bytes | str, error: Exception) -> None:
    try:
        from torchcodec import decoders

        found: Any = decoders.AudioDecoder(source).metadata  # type: ignore[attr-defined]
    except Exception:  # not installed, without FFmpeg, or it cannot read the sound either
        raise ValueError(f"Could not decode audio: {error}") from error
    if found.duration_seconds is None:
        raise ValueError("the sound does not say how long it is; send WAV, FLAC or MP3")
    of_this_thread().take_sound(int(found.duration_seconds * found.sample_rate), found.num_channels, found.sample_rate)


def count_samples(_result: None, chunks: list[Any], *_args: Any, **_kwargs: Any) -> None:
    """After ``_append_resampled_frames``, which PyAV's decoder calls for each packet: end it where a sound is too long.

    Raises:
        ValueError: the sound is too long. It is counted whenever the number of chunks has doubled.
    """
    from sglang.srt.multimodal.audio_from_video import _AudioContainerDecodeError

    if not served.is_gemma4():
        return
    longest = of_this_thread().longest
    most = SOUND_SECONDS * RATE if longest is None else longest + TAIL
    if len(chunks) & (len(chunks) - 1) == 0 and sum(len(chunk) for chunk in chunks) > most:
        raise _AudioContainerDecodeError(f"the sound is longer than {int(most / RATE)} s; send a shorter piece")


def judge_video(processor: Any, video: Any, *_args: Any) -> None:
    """Before ``_video_decoder_to_tensor``, which decodes up to 32 frames at once.

    Raises:
        ValueError: the video has no frame, or they are too large.
    """
    judge_frames(video, min(len(video), getattr(getattr(processor._processor, "video_processor", None), "num_frames", 32)))


def judge_frames(video: Any, frames: int) -> None:
    """Judge a video of which so many frames will be decoded at once.

    Raises:
        ValueError: there is none, or they are too large.
    """
    if frames < 1:
        raise ValueError("the video has no frame")
    height, width = video.frame_shape
    if frames * height * width > VIDEO_PIXELS:
        raise ValueError(
            f"{frames} frames of {width} x {height} pixels are taken from the video, and may have {VIDEO_PIXELS} pixels together; send a "
            "smaller one"
        )
