"""Chooses the frames of a video that the model sees, and the time of each, as transformers' Gemma 4 processor does.

A frame's time is its index divided by the frames per second that the container states. Frames without a container count as 24 per second,
as in transformers.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sglang_gemma4.serving.media import decoding

UNREAD = ("fps", "max_frames", "max_tokens_per_frame", "max_image_tokens", "max_dynamic_patch", "max_long_side_pixel")
"""Settings of one video that SGLang passes to other models' processors and drops for Gemma 4."""


def with_times(original: Callable[..., Any], processor: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Around ``Gemma4SGLangProcessor.process_mm_data``: turn videos into frames with their times.

    Raises:
        ValueError: a video has no frame, frames of unequal size, or more pixels than a video may have.
    """
    if kwargs.get("videos"):
        inner = kwargs.get("processor") or processor._processor
        pairs = [_frames(video, processor, inner.video_processor) for video in kwargs["videos"]]
        kwargs["videos"] = [frames for frames, _ in pairs]
        kwargs["video_metadata"] = [metadata for _, metadata in pairs]
        kwargs["do_sample_frames"] = False
    return original(processor, *args, **kwargs)


def chosen(total: int, fps: float | None, video_processor: Any, config: Mapping[str, Any]) -> list[int]:
    """The indices of the frames that are shown.

    Args:
        total: number of frames.
        fps: frames per second; None if no container states them.
        video_processor: transformers' Gemma 4 video processor; its ``num_frames`` is the most that are shown.
        config: the server's ``video`` part of ``--mm-process-config``, of which ``num_frames`` and ``fps`` are read.
    """
    from transformers.video_utils import VideoMetadata

    most = config.get("num_frames") or video_processor.num_frames
    if config.get("fps") and fps and not config.get("num_frames"):
        most = min(most, max(1, int(total / fps * config["fps"])))
    # transformers refuses a video with fewer frames than it would show; here all its frames are shown
    found = video_processor.sample_frames(VideoMetadata(total_num_frames=total, fps=fps), num_frames=min(most, total))
    return [int(index) for index in found]


def _frames(video: Any, processor: Any, video_processor: Any) -> tuple[Any, dict[str, Any]]:
    """The shown frames, of shape [frames, channels, height, width], and transformers' metadata of the whole video."""
    import torch

    config = processor.video_config
    if hasattr(video, "get_frames_at"):
        indices, fps = _shown(video, video_processor, config)
        decoding.judge_frames(video, len(indices))
        frames = torch.as_tensor(video.get_frames_at(indices)).cpu().permute(0, 3, 1, 2).contiguous()
        return frames, _metadata(len(video), fps, indices, frames)
    indices, _ = _shown(video, video_processor, config)
    if not indices:
        raise ValueError("the video has no frame")
    frames = _stacked([video[index] for index in indices]) if isinstance(video, list | tuple) else torch.as_tensor(video)[indices]
    if frames.dim() != 4:
        raise ValueError(f"a video of shape {list(frames.shape)}; it must be [frames, channels, height, width]")
    return frames, _metadata(len(video), None, indices, frames)


def _shown(video: Any, video_processor: Any, config: Mapping[str, Any]) -> tuple[list[int], float | None]:
    """The indices of the frames that are shown, and the container's frames per second."""
    fps = float(getattr(video, "avg_fps", 0) or 0) or None
    return (chosen(len(video), fps, video_processor, config) if len(video) else []), fps


def judge_together(videos: Sequence[Any], processor: Any, most: int) -> None:
    """Check all videos of a request before any of them is decoded.

    Args:
        processor: SGLang's ``Gemma4SGLangProcessor``.
        most: the most tokens of a prompt.

    Raises:
        ValueError: the shown frames have too many pixels together, or make more than ``most`` tokens.
    """
    inner, frames, pixels, tokens = processor._processor.video_processor, 0, 0, 0
    for video in videos:
        count, size = len(_shown(video, inner, processor.video_config)[0]), _size(video)
        frames += count
        if size is not None and min(size) > 0:
            pixels += count * size[0] * size[1]
            tokens += count * _tokens(size, inner, processor.video_config)
    if pixels > decoding.REQUEST_VIDEO_PIXELS:
        raise ValueError(
            f"video_data: {len(videos)} videos show {frames} frames of {pixels} pixels together, and those of a request may have "
            f"{decoding.REQUEST_VIDEO_PIXELS}; send fewer or smaller ones"
        )
    if tokens > most:
        raise ValueError(
            f"video_data: {len(videos)} videos show {frames} frames that make {tokens} tokens and a prompt may have {most}; send fewer"
        )


def _size(video: Any) -> tuple[int, int] | None:
    """Height and width of a video's frames; None for encoded frames, which are checked when they are decoded."""
    if hasattr(video, "frame_shape"):
        return tuple(video.frame_shape)
    first: Any = video[0] if len(video) else None
    if hasattr(first, "height"):
        return first.height, first.width
    shape = tuple(getattr(first, "shape", ()))
    if len(shape) != 3:
        return None
    return shape[:2] if shape[2] == 3 and shape[0] != 3 else shape[1:]


def _tokens(size: tuple[int, int], video_processor: Any, config: Mapping[str, Any]) -> int:
    """Soft tokens of one frame, without those of its label."""
    from transformers.models.gemma4.image_processing_gemma4 import get_aspect_ratio_preserving_size

    patch, pool = video_processor.patch_size, video_processor.pooling_kernel_size
    budget = config.get("max_soft_tokens") or video_processor.max_soft_tokens
    height, width = get_aspect_ratio_preserving_size(*size, patch, budget * pool**2, pool)
    return int((height // patch) * (width // patch) // pool**2)


def _metadata(total: int, fps: float | None, indices: list[int], frames: Any) -> dict[str, Any]:
    height, width = frames.shape[-2:]
    return {
        "total_num_frames": total,
        "fps": fps,
        "duration": total / fps if fps else None,
        "frames_indices": indices,
        "height": int(height),
        "width": int(width),
    }


def _stacked(frames: Sequence[Any]) -> Any:
    """Stack frames that came one by one, as Pillow images, arrays or bytes of image files: [frames, channels, height, width]."""
    import torch

    made, pixels = [], 0
    for frame in frames:
        made.append(_pixels(frame))
        pixels += made[-1].shape[-1] * made[-1].shape[-2]
        if pixels > decoding.VIDEO_PIXELS:
            raise ValueError(f"the frames of a video may have {decoding.VIDEO_PIXELS} pixels together; send smaller ones")
    shapes = {tuple(frame.shape) for frame in made}
    if len(shapes) > 1:
        raise ValueError(f"the frames of a video must have one size; these have {sorted(shapes)}")
    return torch.stack(made)


def _pixels(frame: Any) -> Any:
    """One frame of shape [channels, height, width]."""
    import numpy
    import torch
    from PIL import Image
    from sglang.srt.utils import common

    if isinstance(frame, bytes):
        frame = common.load_image(frame, False)[0]
    if isinstance(frame, Image.Image):
        frame = numpy.array(frame.convert("RGB"))
    found = torch.as_tensor(frame)
    if found.dim() != 3:
        raise ValueError(f"a frame of shape {list(found.shape)}; it must be [height, width, 3] or [3, height, width]")
    return found.permute(2, 0, 1).contiguous() if found.shape[-1] == 3 and found.shape[0] != 3 else found


def refuse_settings(videos: Any) -> None:
    """Refuse settings of a video that no processor of Gemma 4 reads.

    Raises:
        ValueError: a video comes with such a setting.
    """
    for video in videos if isinstance(videos, list | tuple) else ():
        asked = {**(getattr(video, "preprocess_kwargs", None) or {}), "max_long_side_pixel": getattr(video, "max_long_side_pixel", None)}
        unread = [name for name in UNREAD if asked.get(name) is not None]
        if unread:
            raise ValueError(
                f"video_url: {unread[0]} {asked[unread[0]]} is not read for Gemma 4, which shows up to 32 frames at equal distances; leave "
                "it out, or cut the video before it is sent"
            )


def refuse_addresses(videos: Any) -> None:
    """Refuse a list of frames given as addresses: the thread that processes media would load them one after the other.

    Raises:
        ValueError: a frame is an address, a path or base64.
    """
    for video in videos if isinstance(videos, list | tuple) else ():
        for number, frame in enumerate(video if isinstance(video, list | tuple) else ()):
            if isinstance(frame, str):
                raise ValueError(
                    f"video_data: frame {number} of a list, {frame[:40]!r}, is not loaded, as a list holds decoded frames; send the video "
                    "as one address or file, or its frames as images in image_data"
                )
