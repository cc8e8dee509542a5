"""Hooks that make images attend in both directions where the config says so, unsplit by prefill chunks, or refuse the backend."""

from collections.abc import Callable
from typing import Any

from sglang_gemma4.models.config_files import named_gemma4
from sglang_gemma4.patching import note, switches


def _two_way(runner: Any) -> bool:
    """Whether this is the target model, and its images attend in both directions."""
    from sglang_gemma4.attention import image_spans

    config = runner.model_config.hf_config
    return named_gemma4(config) and not runner.is_draft_worker and image_spans.bidirectional(config)


def mask_triton(_result: None, backend: Any, runner: Any, *_args: Any, **_kwargs: Any) -> None:
    """After ``TritonAttnBackend.__init__``: use attention with image masks, and keep images whole in prefill chunks."""
    if _two_way(runner):
        from sglang_gemma4.attention.image_masks import ImageAttention
        from sglang_gemma4.serving.image_chunks import serve_two_way_images

        backend.extend_attention_fwd = ImageAttention(backend.extend_attention_fwd, backend.device)
        serve_two_way_images()


def begin_triton(_result: None, backend: Any, forward_batch: Any, *_args: Any, **_kwargs: Any) -> None:
    """After ``TritonAttnBackend.init_forward_metadata``: pass the batch to the image masks, if there are any."""
    begin = getattr(backend.extend_attention_fwd, "begin", None)
    if begin is not None:
        begin(forward_batch)


def mask_flash(built: Any, *, model_runner: Any, **_kwargs: Any) -> None:
    """After ``_build_resolved_backend``: use image masks in fa4, alone or for prefill in a pair. Its module only imports on a GPU."""
    backend = getattr(built, "prefill_backend", built)
    if getattr(backend, "fa_impl_ver", None) == 4 and _two_way(model_runner):
        from sglang_gemma4.attention.image_masks import FlashImageLayers

        FlashImageLayers(backend)


def keep_images_whole(_result: None, model: Any, *_args: Any, **_kwargs: Any) -> None:
    """After ``Gemma4ForConditionalGeneration.__init__``: keep images whole in prefill chunks if they attend in both directions."""
    from sglang_gemma4.attention import image_spans

    if image_spans.bidirectional(model.config):
        from sglang_gemma4.serving.image_chunks import serve_two_way_images

        serve_two_way_images()


def masks_of_the_model(original: Callable[..., Any], model: Any, forward_batch: Any, *args: Any, **kwargs: Any) -> None:
    """Around ``Gemma4ForConditionalGeneration.prepare_attn_masks``: skip it if our masks for triton or fa4 describe the batch."""
    from sglang.srt.model_executor.forward_context import get_attn_backend

    from sglang_gemma4.attention import image_spans
    from sglang_gemma4.attention.image_masks import FlashImageLayers, ImageAttention

    if not image_spans.bidirectional(model.config):
        return
    backend = get_attn_backend()
    backend = getattr(backend, "prefill_backend", backend)
    described = isinstance(getattr(backend, "extend_attention_fwd", None), ImageAttention)
    if not described and not isinstance(backend.forward_extend, FlashImageLayers):
        original(model, forward_batch, *args, **kwargs)


def prefill_by_triton(declared: dict[str, Any], provider: Any, server_args: Any, config: Any) -> dict[str, Any] | None:
    """After ``_invoke_provider``: prefill with triton if SGLang chose a backend that masks images as text (trtllm_mha on a B200).

    A backend that the operator chose is kept; :func:`refuse_blind_backends` refuses it if it cannot serve images.
    """
    from sglang_gemma4.attention import image_spans
    from sglang_gemma4.diagnostics import preflight

    chosen = declared.get("attention_backend")
    if provider.__name__ != "_gemma4_overrides" or chosen is None or chosen in preflight.IMAGE_BACKENDS:
        return None
    from sglang.srt.arg_groups.model_override_base import resolving_view

    view = resolving_view(server_args)
    text_only = bool(view.language_model_only) or view.enable_multimodal is False or getattr(config, "vision_config", None) is None
    if view.prefill_attention_backend or text_only or not image_spans.bidirectional(config):
        return None
    note("image_masks", f"triton prefills in the place of {chosen}, which masks images as text; --language-model-only keeps {chosen}")
    return {**declared, "prefill_attention_backend": "triton"}


def refuse_blind_backends(_result: None, server_args: Any) -> None:
    """After ``handle_model_specific_adjustments``, when the backends are resolved.

    Raises:
        PreflightError: the model's images attend in both directions and the prefill backend cannot do that.
    """
    from sglang.srt.arg_groups.model_override_base import attention_backends_of, model_config_of, resolved_view

    from sglang_gemma4.attention import image_spans
    from sglang_gemma4.diagnostics import preflight
    from sglang_gemma4.diagnostics.start_checks import one_line
    from sglang_gemma4.models import config_files

    resolved = resolved_view(server_args)
    config = model_config_of(server_args).hf_config
    if not any(name in config_files.ARCHITECTURES for name in config.architectures or ()):
        return
    with one_line():
        preflight.check_images(
            two_way=image_spans.bidirectional(config) and getattr(config, "vision_config", None) is not None,
            text_only=bool(resolved.language_model_only) or resolved.enable_multimodal is False,
            prefill_backend=attention_backends_of(resolved)[0],
            deterministic=bool(resolved.enable_deterministic_inference),
            cpu_engine=switches.is_on(switches.CPU_ENGINE),
        )
