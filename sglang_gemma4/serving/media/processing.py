"""Runs SGLang's media processing off the event loop, for a few requests at once, and with errors that name a cause."""

import asyncio
import logging
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from sglang_gemma4.serving.media import addresses, image_budget, placeholders, sounds, video
from sglang_gemma4.serving.media.decoding import RATE, REQUEST_SECONDS, Address, Budget

logger = logging.getLogger(__name__)

AT_ONCE = 8
"""Requests whose media are loaded and processed at a time; others wait. This limits memory; more would wait for the same threads."""
STRIP = 1 << 22
"""Pixels of a large image that are copied at once: 12 MB."""
_GATE = "_sglang_gemma4_gate"
soft_tokens: ContextVar[int | None] = ContextVar("soft_tokens", default=None)
"""The budget per image that this task's request asks for; None if it asks for none."""
_context: ContextVar[int | None] = ContextVar("media_context", default=None)
"""The most prompt tokens of the server for which this task processes media; None in tasks of other models' processors."""
_processed: ContextVar[tuple[Any, list[Any]] | None] = ContextVar("processed_media", default=None)
"""The processor and the media of the request that this task tokenises, once they are processed."""


def leave_the_loop(_result: None, processor: Any, *_args: Any, **_kwargs: Any) -> None:
    """After ``Gemma4SGLangProcessor.__init__``: if SGLang would process media on the event loop, use one thread instead.

    SGLang does so if the GPU prepares images, so that no second thread competes for the GPU.

    Raises:
        SwitchError: SGLANG_GEMMA4_LOCAL_MEDIA names something that is not a folder.
    """
    from sglang.srt.multimodal.processors.executor import MultimodalProcessorExecutor

    addresses.named_folders()
    if processor.mm_processor_executor is None:
        processor.mm_processor_executor = MultimodalProcessorExecutor(lambda: processor._processor, 1)


async def process(original: Callable[..., Any], processor: Any, *args: Any, **kwargs: Any) -> Any:
    """Around ``Gemma4SGLangProcessor.process_mm_data_async``: apply the request's limits, and compare the output with the prompt.

    Raises:
        ValueError: the request's media cannot be loaded or processed, or do not fit its prompt.
    """
    longest = None if sounds.cuts(processor) else sounds.longest(processor._processor)
    budget, request = Budget(longest=longest), kwargs.get("request_obj")
    for name in ("image_data", "audio_data"):
        if kwargs.get(name):
            kwargs[name] = [Address.within(item, budget) for item in kwargs[name]]
    _context.set(kwargs.get("max_req_input_len") or sys.maxsize)
    soft_tokens.set(image_budget.of_request(request))
    async with _gate(processor):
        try:
            output = await original(processor, *args, **kwargs)
            _processed.set((processor, output.mm_items))
            placeholders.judge(output, _brought(kwargs), processor.hf_config)
        except ValueError:
            raise
        except Exception as error:
            if _is_ours(error):
                raise
            logger.warning("sglang-gemma4: media of request %s", getattr(request, "rid", None), exc_info=True)
            raise ValueError(f"the media of this request cannot be processed: {type(error).__name__}: {error}") from error
    return output


@contextmanager
def unsent() -> Iterator[None]:
    """Around the tokenisation of a request: if it is refused after its media were processed, free what they hold on the GPU.

    With SGLang's CUDA IPC features wait there for the scheduler, which frees them once it has read them. It never sees such a request.
    """
    _processed.set(None)
    try:
        yield
    except BaseException:
        if (found := _processed.get()) is not None:
            _free(*found)
        raise


def _free(processor: Any, items: list[Any]) -> None:
    from sglang.srt.multimodal.transport.cuda_ipc import CudaIpcTensorTransportProxy

    for item in items:
        for value in (item.feature, item.precomputed_embeddings):
            if isinstance(value, CudaIpcTensorTransportProxy):
                try:
                    processor.cudaipc_mmfeature_pool.cancel_proxy(value)
                except Exception:
                    logger.warning("sglang-gemma4: features of a refused request stay on the GPU", exc_info=True)


def process_large(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Around ``Gemma4SGLangProcessor.process_mm_data``: convert large images to tensors, as nvJPEG's are.

    torchvision's conversion of an image holds the GIL for as long as 270 MB take to copy, twice.
    """
    if kwargs.get("images"):
        kwargs["images"] = [in_strips(image) if _is_large(image) else image for image in kwargs["images"]]
    return original(*args, **kwargs)


def _is_large(image: Any) -> bool:
    return getattr(image, "mode", "") == "RGB" and image.width * image.height > STRIP


def in_strips(image: Any) -> Any:
    """An RGB image as uint8 of shape [3, height, width], converted in strips of about :data:`STRIP` pixels."""
    import numpy
    import torch

    made, rows = torch.empty(3, image.height, image.width, dtype=torch.uint8), max(1, STRIP // image.width)
    for top in range(0, image.height, rows):
        bottom = min(top + rows, image.height)
        strip = numpy.array(image.crop((0, top, image.width, bottom)))
        made[:, top:bottom] = torch.from_numpy(strip).permute(2, 0, 1)
    return made


def _gate(processor: Any) -> asyncio.Semaphore:
    gate: asyncio.Semaphore = processor.__dict__.setdefault(_GATE, asyncio.Semaphore(max(AT_ONCE, 2 * processor.mm_io_worker_num)))
    return gate


def _brought(kwargs: dict[str, Any]) -> dict[str, int | None]:
    """Number of images and of audio by modality; None if they came as features."""
    brought: dict[str, int | None] = {}
    for kind in ("image", "audio"):
        items = kwargs.get(f"{kind}_data") or ()
        brought[kind] = None if any(isinstance(item, dict) for item in items) else len(items)
    return brought


def _is_ours(error: BaseException | None) -> bool:
    """Whether the machine failed, not the request: memory, disk, a worker or a device, anywhere in the chain of exceptions."""
    import torch

    while error is not None:
        if isinstance(error, MemoryError | BrokenExecutor | OSError | torch.OutOfMemoryError | torch.AcceleratorError):
            return True
        error = error.__cause__ or error.__context__
    return False


def judge_loaded(base_output: Any, processor: Any, soft_tokens: int | None = None) -> None:
    """Before media are processed: refuse media that cannot fit the context, or need more memory than a request may have.

    Args:
        soft_tokens: the budget per image that the request asks for.

    Raises:
        ValueError: the media make more tokens than a prompt may have, or the videos or audio are too large together.
    """
    most = _context.get()
    if most is None:
        return
    sizes = [image_budget.size(image) for image in base_output.images or () if not isinstance(image, dict)]
    if sizes:
        tokens = sum(image_budget.tokens(processor, sizes, soft_tokens))
        if tokens > most:
            budget = image_budget.effective(processor, soft_tokens)
            raise ValueError(
                f"image_data: {len(sizes)} images make {tokens} tokens, of at most {budget} each, and a prompt may have {most}; send "
                f"fewer, or a smaller mm_processor_kwargs.{image_budget.NAME}"
            )
    video.judge_together([one for one in base_output.videos or () if not isinstance(one, dict)], processor, most)
    lengths = [len(sound) for sound in base_output.audios or () if not isinstance(sound, dict)]
    if lengths:
        _judge_lengths(lengths, most)


def release(base_output: Any) -> None:
    """Free decoded images in another thread, because hundreds of MB take a while."""
    if _context.get() is not None and base_output.images:
        asyncio.get_running_loop().run_in_executor(None, base_output.images.clear)


def _judge_lengths(lengths: list[int], most: int) -> None:
    tokens = sum(lengths) // sounds.SAMPLES_A_TOKEN
    if tokens > most:
        raise ValueError(f"audio_data: {sum(lengths) / RATE:.1f} s of audio make {tokens} tokens and a prompt may have {most}; send less")
    if len(lengths) * max(lengths) > REQUEST_SECONDS * RATE:
        raise ValueError(
            f"audio_data: {len(lengths)} clips, filled up to the longest of {max(lengths) / RATE:.1f} s, are together longer than "
            f"{REQUEST_SECONDS:.0f} s; send fewer at once"
        )
