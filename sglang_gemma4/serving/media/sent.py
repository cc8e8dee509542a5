"""Hooks on a request's media: normalise addresses; refuse ignored settings, videos without a placeholder and audio of a wrong length."""

import os
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import is_dataclass, replace
from typing import Any

from sglang_gemma4.serving.media import base64_text, served, sounds, video
from sglang_gemma4.serving.media.decoding import Address

_videos: ContextVar[int | None] = ContextVar("videos_sent", default=None)
"""Number of videos in this task's request; None in tasks of other models' processors."""
_SHORT = 60
"""A text without a scheme of up to this many characters is taken for a name, not for base64."""


async def process(original: Callable[..., Any], processor: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Around ``Gemma4SGLangProcessor.process_mm_data_async``: normalise addresses, and check videos.

    Raises:
        ValueError: a video comes with a setting that is not read, or as a list of addresses.
    """
    for name in ("image_data", "audio_data"):
        if kwargs.get(name):
            kwargs[name] = tidy(kwargs[name])
    request: Any = kwargs.get("request_obj")
    videos = getattr(request, "video_data", None)
    if videos:
        video.refuse_settings(videos)
        video.refuse_addresses(videos)
        request.video_data = tidy(videos)
    _videos.set(len(videos) if isinstance(videos, list | tuple) else 0)
    return await original(processor, *args, **kwargs)


async def judge_loaded(original: Callable[..., Any], processor: Any, /, base_output: Any, *args: Any, **kwargs: Any) -> Any:
    """Around ``process_and_combine_mm_data_async``, between loading and processing: check videos and audio.

    Raises:
        ValueError: a video has no placeholder in the prompt, or audio is too short or too long.
    """
    sent = _videos.get()
    if sent is not None:
        loaded = len(base_output.videos or ())
        if loaded != sent:
            raise ValueError(f"video_data: the request brings {sent} and its prompt has places for {loaded}; write one <|video|> for each")
        if base_output.audios:
            sounds.judge(base_output.audios, processor._processor, sounds.cuts(processor))
    return await original(processor, base_output, *args, **kwargs)


def load(original: Callable[..., Any], source: Any, *args: Any, **kwargs: Any) -> Any:
    """Around ``load_image``, ``load_video`` and ``load_audio``, in threads: normalise long base64 that SGLang cannot decode, and retry.

    Raises:
        ValueError: from SGLang, if that fails too.
    """
    try:
        return original(source, *args, **kwargs)
    except (ValueError, OSError):  # OSError: SGLang opens audio without a scheme as a file
        made = _respelled(source) if served.is_gemma4() else None
        if made is None:
            raise
    return original(made, *args, **kwargs)


def _respelled(source: Any) -> Any:
    text = getattr(source, "url", source)
    made = base64_text.respelled(text) if isinstance(text, str) else None
    if made is None:
        return None
    kept = _kept(text, made)
    return kept if text is source else replace(source, url=kept)


def tidy(data: Any) -> Any:
    """Media with their addresses in the form that SGLang's loaders expect; other items are unchanged."""
    if isinstance(data, list | tuple):
        return [tidy(one) for one in data]
    if isinstance(data, str):
        return _kept(data, _address(data))
    url = getattr(data, "url", None)
    if isinstance(url, str) and is_dataclass(data) and not isinstance(data, type):
        return replace(data, url=tidy(url))
    return data


def _address(text: str) -> str:
    made = base64_text.address(text)
    known = text.startswith(("data:", "http:", "https:", "file:"))
    if made != text or known or not _SHORT < len(text) <= base64_text.SCANNED:
        return made
    encoded = base64_text.standard(text)
    return text if encoded is None or encoded == text or _is_file(text) else f"data:;base64,{encoded}"


def _is_file(text: str) -> bool:
    try:
        return os.path.isfile(text)
    except ValueError:  # a zero byte
        return False


def _kept(text: str, made: str) -> str:
    """``made`` with the budget of ``text``, if ``text`` has one."""
    budget = getattr(text, "budget", None)
    if made == text or budget is None:
        return text if made == text else made
    kept: str = Address.within(made, budget)
    return kept
