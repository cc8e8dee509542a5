"""Limits the size of decoded images, audio and videos. Headers are checked before decoding: a few kB may decode to gigabytes.

=====================  ========================================================================================================
an image               :data:`IMAGE_PIXELS`
images of a request    :data:`REQUEST_PIXELS`, each counted as at least :data:`LEAST_PIXELS`, to which a small one is enlarged
an audio clip          :data:`SOUND_SECONDS`; :data:`RESAMPLING` entries in the filter for its sample rate
clips of a request     :data:`REQUEST_SAMPLES` over all channels; :data:`REQUEST_SECONDS`, each counted as the longest, to which
                       the others are padded
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
from urllib.parse import unquote, urlparse

from sglang_gemma4.serving.media import base64_text, served

RATE = 16_000
"""Samples per second of the audio that SGLang loads."""
IMAGE_PIXELS = 50_000_000
"""200 MB decoded. Freeing this much holds the GIL, and the event loop waits for it."""
REQUEST_PIXELS = 4 * IMAGE_PIXELS
LEAST_PIXELS = 500_000
SOUND_SECONDS = 300.0
"""Ten times the length that Gemma 4 is documented for."""
REQUEST_SECONDS = 3 * SOUND_SECONDS
REQUEST_SAMPLES = 60_000_000
"""Decoded in float64: 480 MB."""
RESAMPLING = 2**24
VIDEO_PIXELS = 32 * 4096 * 2304
REQUEST_VIDEO_PIXELS = 2 * VIDEO_PIXELS
"""1.8 GB decoded: nine videos of 1920 x 1080 pixels."""
TAIL = 3 * RATE // 10
"""Samples beyond the longest audio that are cut instead of refused: 0.3 s, more than the padding of MP3 encoders."""
_MP3_HEAD = 1 << 16
"""First bytes of an MP3 in which its frame count is looked for."""
PROGRAMS = ("EPS", "WMF", "EMF")
"""Image formats that Pillow renders with other programs."""


@dataclass
class Budget:
    """The amount that one request may still decode.

    Attributes:
        longest: longest audio that the model takes, in samples at 16 kHz; None if it is not known or longer audio is cut.
    """

    pixels: int = REQUEST_PIXELS
    samples: int = REQUEST_SAMPLES
    longest: int | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def take_image(self, width: int, height: int) -> None:
        """Charge an image of this size, in pixels.

        Raises:
            ValueError: the image is empty or too large, or the request's images together are too large.
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
        """Charge audio of ``frames`` samples per channel at ``rate`` Hz; an estimate (not ``exact``) is not held against the model's limit.

        Raises:
            ValueError: the audio is empty or too long, cannot be resampled to 16 kHz, or the request's audio together is too long.
        """
        if frames < 1 or channels < 1 or rate < 1:
            raise ValueError(f"the audio has {frames} samples in {channels} channels at {rate} Hz: it is empty")
        if exact and self.longest is not None and frames * RATE > (self.longest + TAIL) * rate:
            raise ValueError(too_long("the audio", frames / rate, self.longest))
        if frames / rate > SOUND_SECONDS:
            raise ValueError(f"the audio is {frames / rate:.1f} s long and a clip may be {SOUND_SECONDS:.0f} s; send a shorter piece")
        shared = math.gcd(rate, RATE)
        if (rate // shared) * (RATE // shared) > RESAMPLING:
            raise ValueError(
                f"the audio has {rate} samples a second, for which a filter to {RATE} would need {(rate // shared) * (RATE // shared)} "
                f"entries and may have {RESAMPLING}; send it at a usual rate such as 16000, 44100 or 48000"
            )
        with self._lock:
            self.samples -= frames * channels
            if self.samples < 0:
                raise ValueError(f"the audio clips of one request may have {REQUEST_SAMPLES} samples together; send fewer or shorter ones")


def too_long(sound: str, seconds: float, longest: int) -> str:
    """The error for audio of ``seconds``, for a model that takes ``longest`` samples at 16 kHz; ``sound`` names the audio."""
    return (
        f"{sound} is {seconds:.1f} s long and this model takes {longest / RATE:.0f} s; send it in pieces, or start the server with "
        '--mm-process-config \'{"audio": {"truncation": true}}\' to have it cut there'
    )


class Address(str):
    """The address of an image or audio with the budget of its request: SGLang passes only the address to its decoders."""

    budget: Budget

    @classmethod
    def within(cls, item: Any, budget: Budget) -> Any:
        """``item`` with its address replaced by an ``Address``; an item without one, such as a decoded image, is unchanged."""
        if isinstance(item, str):
            address = cls(item)
            address.budget = budget
            return address
        url = getattr(item, "url", None)
        if isinstance(url, str) and is_dataclass(item) and not isinstance(item, type):
            return replace(item, url=cls.within(url, budget))
        return item


_budget: ContextVar[Budget | None] = ContextVar("media_budget", default=None)
"""Budget of the image or audio that this thread loads."""
_charged: ContextVar[bool] = ContextVar("media_charged", default=False)
"""Whether the image that this thread loads was charged to its budget: Pillow decodes again what nvJPEG rejects."""


def load_within(load: Callable[..., Any], source: Any, *args: Any, **kwargs: Any) -> Any:
    """Call SGLang's ``load_image`` or ``load_audio`` with the budget of ``source`` set for the hooks inside."""
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
    """Before ``_fully_load_pil_image``, which decodes an image after only its header was read: check and charge its size.

    Raises:
        ValueError: the image is empty, too large, or of a format that another program would render.
    """
    if not served.is_gemma4():
        return
    if image.format in PROGRAMS:
        raise ValueError(f"images of format {image.format} are not decoded; send PNG, JPEG or WebP")
    charge_image(*image.size)


def charge_image(width: int, height: int) -> None:
    """Charge the image that this thread loads to its request, once.

    Raises:
        ValueError: the image is empty or too large, or the request's images together are too large.
    """
    if not _charged.get():
        of_this_thread().take_image(width, height)
        _charged.set(_budget.get() is not None)


def load_sound_within(load: Callable[..., Any], source: Any, *args: Any, **kwargs: Any) -> Any:
    """Around ``load_audio``, as :func:`load_within`: audio of limited length, float32 or float64 of shape [samples].

    Raises:
        ValueError: the audio cannot be decoded, is empty or too long, or has NaN or infinite samples.
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
        raise ValueError("the audio has no samples: it is empty")
    if not numpy.isfinite(samples).all():
        raise ValueError("the audio holds samples that are infinite or no numbers")
    return samples


def _fetched(source: Any) -> Any:
    """The bytes of an http(s) or data: address or of long base64; any other source unchanged."""
    import os

    from sglang.srt.utils import common

    if not isinstance(source, str):
        return source
    if source.startswith(("http://", "https://")):
        return common.download_remote_media(source, timeout=int(os.getenv("REQUEST_TIMEOUT", "5")))
    if source.startswith("file://"):
        return unquote(urlparse(source).path)  # as SGLang reads it
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
    """Check audio by its header, with soundfile or torchcodec. PyAV, for containers, counts samples while it decodes."""
    import soundfile  # type: ignore[import-untyped]
    from sglang.srt.multimodal.audio_from_video import is_audio_container

    if not isinstance(source, bytes | str) or (isinstance(source, bytes) and is_audio_container(source[:16])):
        return
    try:
        found = soundfile.info(io.BytesIO(source) if isinstance(source, bytes) else source)
    except soundfile.LibsndfileError as error:
        _judge_other_sound(source, error)
    else:
        of_this_thread().take_sound(found.frames, found.channels, found.samplerate, found.format != "MP3" or _counts_its_frames(source))


def _counts_its_frames(source: bytes | str) -> bool:
    """Whether an MP3 states its length; for others, libsndfile assumes the bit rate of the first part for the whole file."""
    if isinstance(source, str):
        with open(source, "rb") as file:
            source = file.read(_MP3_HEAD)
    return any(tag in source[:_MP3_HEAD] for tag in (b"Xing", b"Info", b"VBRI"))


def _judge_other_sound(source: bytes | str, error: Exception) -> None:
    try:
        from torchcodec import decoders

        found: Any = decoders.AudioDecoder(source).metadata  # type: ignore[attr-defined]
    except Exception:  # not installed, without FFmpeg, or it cannot read the audio either
        raise ValueError(f"Could not decode audio: {error}") from error
    if found.duration_seconds is None:
        raise ValueError("the audio does not say how long it is; send WAV, FLAC or MP3")
    of_this_thread().take_sound(int(found.duration_seconds * found.sample_rate), found.num_channels, found.sample_rate)


def count_samples(_result: None, chunks: list[Any], *_args: Any, **_kwargs: Any) -> None:
    """After ``_append_resampled_frames``, which PyAV's decoder calls for each packet: stop decoding audio that is too long.

    Raises:
        ValueError: the audio is too long. Samples are counted whenever the number of chunks has doubled.
    """
    from sglang.srt.multimodal.audio_from_video import _AudioContainerDecodeError

    if not served.is_gemma4():
        return
    longest = of_this_thread().longest
    most = SOUND_SECONDS * RATE if longest is None else longest + TAIL
    if len(chunks) & (len(chunks) - 1) == 0 and sum(len(chunk) for chunk in chunks) > most:
        raise _AudioContainerDecodeError(f"the audio is longer than {int(most / RATE)} s; send a shorter piece")


def judge_video(processor: Any, video: Any, *_args: Any) -> None:
    """Before ``_video_decoder_to_tensor``, which decodes up to 32 frames at once.

    Raises:
        ValueError: the video has no frame, or its frames are too large.
    """
    judge_frames(video, min(len(video), getattr(getattr(processor._processor, "video_processor", None), "num_frames", 32)))


def judge_frames(video: Any, frames: int) -> None:
    """Check a video of which ``frames`` frames will be decoded at once.

    Raises:
        ValueError: there is no frame, or the frames are too large together.
    """
    if frames < 1:
        raise ValueError("the video has no frame")
    height, width = video.frame_shape
    if frames * height * width > VIDEO_PIXELS:
        raise ValueError(
            f"{frames} frames of {width} x {height} pixels are taken from the video, and may have {VIDEO_PIXELS} pixels together; send a "
            "smaller one"
        )
