"""Media that a model or prompt cannot take, and local files, are a 400; none is processed on the event loop."""

from collections.abc import Callable
from typing import Any

from sglang_gemma4.patching import Hook, Patch

MANAGER = "sglang.srt.managers.tokenizer_manager.TokenizerManager"
PROCESSOR = "sglang.srt.multimodal.processors.gemma4.Gemma4SGLangProcessor"
BASE = "sglang.srt.multimodal.processors.base_processor.BaseMultimodalProcessor"
OURS = "sglang_gemma4.serving.media"


def _serves_gemma4(manager: Any) -> bool:
    from sglang_gemma4.models.config_files import named_gemma4

    return named_gemma4(manager.model_config.hf_config)


def mark_process(*_args: Any, **_kwargs: Any) -> None:
    """After ``Gemma4SGLangProcessor.__init__``, also where ``media_bounds`` is left out."""
    from sglang_gemma4.serving.media import served

    served.mark()


def judge_addresses(original: Callable[..., Any], manager: Any, obj: Any, request: Any = None) -> Any:
    """Around ``TokenizerManager.generate_request``: over HTTP and gRPC, which give the connection; an Engine's own caller gives none."""
    if request is not None and _serves_gemma4(manager):
        from sglang.srt.runtime_context import get_mm

        from sglang_gemma4.serving.media import addresses

        addresses.judge(obj, bool(get_mm().trust_mm_content_hashes))
    return original(manager, obj, request)


async def judge_modalities(original: Callable[..., Any], manager: Any, obj: Any) -> Any:
    """Around ``TokenizerManager._tokenize_one_request``.

    Raises:
        ValueError: the request brings an image, a video or a sound that this server does not take, or asks for another size of images.
    """
    if _serves_gemma4(manager):
        from sglang.srt.runtime_context import get_disagg, get_serving

        from sglang_gemma4.serving.media import accepted, image_budget

        image_budget.of_request(obj)
        flag = "--language-model-only" if get_disagg().language_model_only else ""
        why = f"the server runs with {flag}" if flag else "its checkpoint or its flags leave the towers out"
        config, towers = manager.model_config.hf_config, manager.mm_processor is not None and not flag
        refusal = accepted.refusal(obj, config, towers, get_serving().served_model_name, why)
        if refusal is not None:
            raise ValueError(refusal)
    return await original(manager, obj)


async def judge_loaded(original: Callable[..., Any], processor: Any, base_output: Any, mm_tokens: Any, **kwargs: Any) -> Any:
    """Around ``process_and_combine_mm_data_async``, between loading and processing."""
    from sglang_gemma4.serving.media import image_budget, processing

    asked = processing.soft_tokens.get()
    processing.judge_loaded(base_output, processor, asked)
    if asked is not None:
        kwargs[image_budget.KEYWORD] = asked
    try:
        return await original(processor, base_output, mm_tokens, **kwargs)
    finally:
        processing.release(base_output)


PATCH = Patch(
    switch="SGLANG_GEMMA4_REQUEST_CHECKS",
    why="A sound sent to a model without an audio tower ends stock's scheduler, as do features of another length than their placeholders; "
    "over HTTP any file of the server is read as media, and mm_hashes name another client's cached features. Where the card prepares "
    "images, stock does so on the event loop. Images of equal patches and other positions share one cache entry.",
    evidence="srt/models/gemma4_mm.py:580 · managers/mm_schedule.py:707 · utils/common.py:2192 · managers/tokenizer_manager.py:1242 · "
    "multimodal/processors/base_processor.py (process_and_combine_mm_data_async; mm_processor_kwargs is unread) · managers/mm_utils.py:931 "
    "(hash_feature) · crash_repro/audio_without_tower.py, local_media.py, plain_images.py",
    remove_when="SGLang refuses what a tower is missing for, judges features before the scheduler and reads local files where allowed.",
    hooks=(
        Hook(f"{MANAGER}.generate_request", "around", judge_addresses, "21bc72224c6a"),
        Hook(f"{MANAGER}._tokenize_one_request", "around", judge_modalities, "5f726c05bb27"),
        Hook(f"{PROCESSOR}.__init__", "after", mark_process, "a68fa6711fb8"),
        Hook(f"{PROCESSOR}.__init__", "after", f"{OURS}.processing:leave_the_loop", "a68fa6711fb8"),
        Hook(f"{PROCESSOR}.process_mm_data_async", "around", f"{OURS}.processing:process", "6e061e74bf0a"),
        Hook(f"{PROCESSOR}.process_mm_data", "around", f"{OURS}.processing:process_large", "c9319d6bf9b8"),
        Hook(f"{BASE}.process_and_combine_mm_data_async", "around", judge_loaded, "c99f0176c34f"),
        Hook(f"{BASE}.process_and_combine_mm_data", "around", f"{OURS}.image_budget:process", "530c73d6287a"),
        Hook(f"{BASE}._call_processor", "before", f"{OURS}.image_budget:ask", "6da715bd5663"),
        Hook(f"{BASE}.resolve_image_token_counts", "around", f"{OURS}.image_budget:count", "0769fd5f5be5"),
        Hook(
            "sglang.srt.managers.schedule_batch.MultimodalDataItem.set_pad_value",
            "around",
            f"{OURS}.identity:tell_apart",
            "f30b7ae38199",
        ),
    ),
)
