"""Hooks that answer 400 before the scheduler to values that no tensor can hold, ids outside the vocabulary and SGLang's internal fields."""

import asyncio
from collections.abc import Callable
from typing import Any

from sglang_gemma4 import patching

LIMITS = "_sglang_gemma4_limits"


def _serves_gemma4(manager: Any) -> bool:
    from sglang_gemma4.models.config_files import named_gemma4

    return named_gemma4(manager.model_config.hf_config)


def limits_of(manager: Any) -> Any:
    """The limits of this process's server, computed once."""
    found = getattr(manager, LIMITS, None)
    if found is None:
        from sglang.srt.runtime_context import get_observability, get_spec
        from sglang.srt.sampling.sampling_params import SamplingParams

        from sglang_gemma4.serving.request_limits import APPLY_PROCESSORS, Limits, most_sequences

        config, drafted = manager.model_config, get_spec().speculative_algorithm or ""
        found = Limits(
            vocabulary=config.vocab_size,
            context=manager.context_len,
            hidden=config.hidden_size,
            sequences=most_sequences(manager.server_args.max_running_requests or 0),
            layer_embeddings=bool(getattr(config.hf_text_config, "hidden_size_per_layer_input", 0)),
            parameters=frozenset(SamplingParams.__struct_fields__),
            labels=frozenset(get_observability().tokenizer_metrics_allowed_custom_labels or ()),
            without_processors="" if drafted in APPLY_PROCESSORS else drafted,
        )
        setattr(manager, LIMITS, found)
    return found


def judge(manager: Any, obj: Any, request: Any = None) -> None:
    """Before ``TokenizerManager.generate_request``, which every endpoint and every Engine call uses: check the request's values.
    Raises:
        ValueError: the request is answered with status 400.
    """
    if not _serves_gemma4(manager):
        return
    from sglang.srt.managers.io_struct import EmbeddingReqInput

    if isinstance(obj, EmbeddingReqInput):
        raise ValueError(
            "this server generates text: a Gemma 4 model has no pooled output for embeddings, classes, scores of pairs or ranks"
        )
    from sglang_gemma4.serving import request_values

    path = getattr(getattr(request, "url", None), "path", "")
    request_values.judge(obj, limits_of(manager), request is not None and path not in ("/health", "/health_generate"))
    if request_values.wants_seed(obj.sampling_params) and not _seeds():
        patching.note("request_values", "seed: sampled answers follow a request's seed only with --enable-deterministic-inference")


def _seeds() -> bool:
    from sglang.srt.runtime_context import get_exec

    return bool(get_exec().deterministic.enable_deterministic_inference)


def judge_positions(manager: Any, obj: Any, input_ids: Any) -> None:
    """Before ``TokenizerManager._validate_one_request``: check what depends on the prompt's length, which is known here.

    Raises:
        ValueError: the request is answered with status 400.
    """
    if _serves_gemma4(manager):
        from sglang_gemma4.serving import prompt_positions

        prompt_positions.judge(obj, input_ids, limits_of(manager))


async def send_in_turn(original: Callable[..., Any], manager: Any, tokenized: Any) -> None:
    """Around ``TokenizerManager._send_one_request``: between a request's many samples the event loop serves other clients."""
    await original(manager, tokenized)
    await asyncio.sleep(0)


async def judge_fields(original: Callable[..., Any], obj: Any, request: Any) -> Any:
    """Around the route ``/generate``: refuse a request that sets SGLang's internal fields."""
    from sglang_gemma4.serving import internal_fields

    refusal = internal_fields.refusal(obj)
    if refusal is None:
        return await original(obj, request)
    from fastapi.responses import ORJSONResponse

    return ORJSONResponse({"error": {"message": refusal}}, status_code=400)


async def detokenize(original: Callable[..., Any], serving: Any, adapted: Any, request: Any, raw_request: Any) -> Any:
    """Around ``OpenAIServingDetokenize._handle_non_streaming_request``: ids outside the vocabulary are a client's error."""
    from sglang_gemma4.serving.prompt_values import judge_ids

    manager = serving.tokenizer_manager
    batch = request.tokens if request.tokens and isinstance(request.tokens[0], list) else [request.tokens]
    try:
        for ids in batch:
            judge_ids("tokens", ids, max(limits_of(manager).vocabulary, len(manager.tokenizer)))
    except ValueError as error:
        return serving.create_error_response(str(error))
    return await original(serving, adapted, request, raw_request)
