"""Hooks that answer 400 to media that the model or prompt cannot take and to local files, and process media off the event loop."""

from collections.abc import Callable
from typing import Any


def _serves_gemma4(manager: Any) -> bool:
    from sglang_gemma4.models.config_files import named_gemma4

    return named_gemma4(manager.model_config.hf_config)


def mark_process(*_args: Any, **_kwargs: Any) -> None:
    """After ``Gemma4SGLangProcessor.__init__``: mark this process, even if ``media_bounds`` is switched off."""
    from sglang_gemma4.serving.media import served

    served.mark()


def judge_addresses(original: Callable[..., Any], manager: Any, obj: Any, request: Any = None) -> Any:
    """Around ``TokenizerManager.generate_request``: check addresses over HTTP and gRPC, which pass ``request``; an Engine passes none."""
    if request is not None and _serves_gemma4(manager):
        from sglang.srt.runtime_context import get_mm

        from sglang_gemma4.serving.media import addresses

        addresses.judge(obj, bool(get_mm().trust_mm_content_hashes))
    return original(manager, obj, request)


async def judge_modalities(original: Callable[..., Any], manager: Any, obj: Any) -> Any:
    """Around ``TokenizerManager._tokenize_one_request``: check the modalities and the image budget.

    Raises:
        ValueError: the request has an image, video or audio that this server does not take, or an image budget that is not allowed.
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

        from sglang_gemma4.serving.media import processing

        with processing.unsent():
            return await original(manager, obj)
    return await original(manager, obj)


async def judge_loaded(original: Callable[..., Any], processor: Any, base_output: Any, mm_tokens: Any, **kwargs: Any) -> Any:
    """Around ``process_and_combine_mm_data_async``, between loading and processing: check the loaded media, and free them after."""
    from sglang_gemma4.serving.media import image_budget, processing

    asked = processing.soft_tokens.get()
    try:
        processing.judge_loaded(base_output, processor, asked)
        if asked is not None:
            kwargs[image_budget.KEYWORD] = asked
        return await original(processor, base_output, mm_tokens, **kwargs)
    finally:
        processing.release(base_output)
