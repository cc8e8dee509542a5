"""Reasons why a prefill does not share a forward with running requests: of the server, of the next prompts, of two
batches."""

import functools
from typing import Any

import torch
from sglang.srt.environ import envs
from sglang.srt.runtime_context import get_disagg, get_exec, get_lora, get_memory, get_parallel, get_spec

from sglang_gemma4.attention import image_spans, second_metadata
from sglang_gemma4.attention.image_masks import ImageAttention
from sglang_gemma4.attention.quantised import ReadsLevels
from sglang_gemma4.memory.tiers import other_tier
from sglang_gemma4.models.schedule import joined_graph, whole_graphs
from sglang_gemma4.patching import switches, uses
from sglang_gemma4.speculative import beside_bounds

MEDIA_FIXES = "SGLANG_GEMMA4_MEDIA_FIXES"
LOOKED_AT = 64
"""Waiting requests that are examined; more do not fit into a step."""
GRAMMAR = "without speculation the overlapped scheduler samples under a grammar after the next step has begun"
UNTRIED = "with which no mixed batch was run"
given_up: list[str] = []
"""Why this process runs no more mixed batches, if one failed."""


def reason_against_server(scheduler: Any) -> str | None:
    """Why this server runs no mixed batches, or None."""
    if given_up:
        return given_up[0]
    if scheduler.enable_hicache_storage:  # it may be attached while serving
        return f"a storage backend of HiCache, {UNTRIED}"
    return _reason_against_fixed(scheduler)


def reason_against_next(scheduler: Any) -> str | None:
    """Why the prompts that may be next do not run in a mixed batch, as far as that is known before they are chosen;
    or None."""
    waiting = _waiting(scheduler)
    media = any(req.multimodal_inputs is not None for req in waiting)
    problem = reason_against_server(scheduler) or (reason_against_media(scheduler.tp_worker.model_runner) if media else None)
    if problem is None and _delayed(scheduler) and any(req.grammar is not None for req in waiting):
        return GRAMMAR
    return problem


def _waiting(scheduler: Any) -> list[Any]:
    """Requests that may be chosen next."""
    return [*scheduler.waiting_queue[:LOOKED_AT], *([] if scheduler.chunked_req is None else [scheduler.chunked_req])]


def media_waits(scheduler: Any) -> bool:
    """Whether a prompt that may be next has images, videos or audio: the time of its step is not comparable with
    others."""
    return any(req.multimodal_inputs is not None for req in _waiting(scheduler))


def reason_against_running(scheduler: Any, running: Any) -> str | None:
    """Why these running requests share no forward with any prefill, or None. Prompts then keep SGLang's chunk size:
    short chunks that each stop the batch would only delay both."""
    if running.is_empty():
        return None
    if running.is_prefill_only:
        return "requests without output tokens"
    if any(req.beam_group is not None for req in running.reqs):
        return "beam search"
    if _delayed(scheduler):
        if running.has_grammar or envs.SGLANG_ENABLE_DELAY_SAMPLE.get():
            return GRAMMAR
        if running.sampling_info.penalizer_orchestrator.is_required:
            # cumulate_penalty_output_tokens takes the last token that the host knows, which may be one less after a prefill.
            return "without speculation the overlapped scheduler's penalties depend on when a prefill's token is read"
    if not running.check_decode_mem():
        return "the KV pool has no room for the running requests' next tokens, so some may be retracted"
    return None


def _delayed(scheduler: Any) -> bool:
    """Whether the next step begins before a step's tokens are sampled."""
    return bool(scheduler.enable_overlap and scheduler.spec_algorithm.is_none())


def reason_against_media(runner: Any) -> str | None:
    """Why prompts with images, videos or audio do not run in a mixed batch, or None."""
    backend = getattr(runner.attn_backend, "prefill_backend", runner.attn_backend)
    if isinstance(getattr(backend, "extend_attention_fwd", None), ImageAttention) or type(backend).__name__ == "Gemma4CpuAttention":
        return None
    if not switches.is_on(MEDIA_FIXES) or image_spans.bidirectional(runner.model_config.hf_config):
        return f"a prompt has images, video or audio, whose masks a {type(backend).__name__} gets for a whole batch"
    return None


@functools.cache
def _reason_against_fixed(scheduler: Any) -> str | None:
    """The reason that does not change while a scheduler runs; asked for in each of its iterations."""
    runner = scheduler.tp_worker.model_runner
    problem = (
        reason_against_unasked(runner) or reason_against_flags() or _reason_against_loop(scheduler) or reason_against_speculation(scheduler)
    )
    return problem or reason_against_runner(runner) or reason_against_ungraphed(runner)


def reason_against_unasked(runner: Any) -> str | None:
    """Why mixed batches are off by default on this model, GPU or cache, where no gain was measured; or None."""
    if uses.asks_beside():
        return None
    if not getattr(runner.model_config.hf_text_config, "enable_moe_block", False):
        return f"a dense model, on which it was not measured ({switches.BESIDE}=1 turns it on)"
    if runner.device != "cuda" or torch.cuda.get_device_capability() < uses.HOPPER:
        return f"no GPU on which it was measured, Hopper or later ({switches.BESIDE}=1 turns it on)"
    if runner.kv_cache_dtype != runner.dtype:
        return f"a quantised KV cache, over which it was not measured ({switches.BESIDE}=1 turns it on)"
    if runner.kv_index_translator.is_translating:
        return f"--enable-unified-memory, over which it was not measured ({switches.BESIDE}=1 turns it on)"
    if get_memory().enable_hierarchical_cache:
        return f"--enable-hierarchical-cache, over which it was not measured ({switches.BESIDE}=1 turns it on)"
    return None


@functools.cache
def idle(scheduler: Any) -> bool:
    """Whether this server is one of those: it runs as without the patch, and ``uses.joined_steps`` says why."""
    return reason_against_unasked(scheduler.tp_worker.model_runner) is not None


def reason_against_ungraphed(runner: Any) -> str | None:
    """Where no one asked for mixed batches, they run in whole graphs only: in pieces they lost
    (``runs/2026-11-24-26b-beside-vllm``)."""
    graphs = joined_graph.graphs_of(runner)
    if uses.asks_beside() or (graphs is not None and whole_graphs.of(graphs) is not None):
        return None
    return f"there are no graphs of whole mixed batches ({switches.BESIDE}=1 joins them without)"


def reason_against_flags() -> str | None:
    """Why a server with these flags runs no mixed batches, as far as its flags alone tell; or None."""
    parallel, execution = get_parallel(), get_exec()
    for what, size in (
        ("pipeline", parallel.pp_size), ("attention data", parallel.attn_dp_size), ("context", parallel.attn_cp_size),
        ("decode context", parallel.attn_dcp_size),
    ):  # fmt: skip
        if size > 1:
            return f"{what} parallel over {size} ranks"
    if get_disagg().disaggregation_mode != "null":
        return "prefill and decode are on servers of their own"
    if parallel.tp_size > 1 and beside_bounds.most_tokens() is None:
        return f"--tp-size {parallel.tp_size}: each rank would measure its own times; {switches.BESIDE_TOKENS} bounds prompts instead"
    if envs.SGLANG_DISABLE_CONSECUTIVE_PREFILL_OVERLAP.get():
        return "SGLANG_DISABLE_CONSECUTIVE_PREFILL_OVERLAP: a request may end between the choice of a step and its forward"
    if get_spec().speculative_eagle_topk not in (None, 1):
        return f"--speculative-eagle-topk {get_spec().speculative_eagle_topk}: drafts are trees"
    if get_lora().enable_lora:
        return "LoRA adapters follow the rows of one batch"
    if execution.deterministic.enable_deterministic_inference:
        return "deterministic inference: a row's rounding would depend on what runs beside it"
    if execution.moe.expert_distribution_recorder_mode is not None:
        return "the use of experts is recorded by batch"
    return reason_against_tier()


def reason_against_tier() -> str | None:
    """Why a server that also keeps KV elsewhere runs no mixed batches, by its flags; or None. HiCache's host memory
    is no reason: loads from it are waited for (:mod:`models.schedule.host_loads`)."""
    tier = other_tier(get_memory())
    return None if tier is None else f"{tier}: a tier of KV {UNTRIED}"


def _reason_against_loop(scheduler: Any) -> str | None:
    """Why this scheduler's loop runs no mixed batches, or None."""
    if not scheduler.is_generation or scheduler.dllm_config is not None:
        return "the model does not decode token by token"
    return "PD multiplexing follows one batch's forward" if scheduler.enable_pdmux else None


def reason_against_speculation(scheduler: Any) -> str | None:
    """Why drafts of this server cannot be verified in a mixed batch, or None."""
    from sglang.srt.speculative.frozen_kv_mtp_worker_v2 import FrozenKVMTPWorkerV2

    from sglang_gemma4.speculative.worker_v1 import FrozenKVMTPWorkerV1

    if scheduler.spec_algorithm.is_none():
        return None
    worker = scheduler.model_worker
    if not isinstance(worker, FrozenKVMTPWorkerV2) or isinstance(worker, FrozenKVMTPWorkerV1):
        return f"drafts are those of a {type(worker).__name__}"
    if worker.plan_stream is not None:
        return "verify steps are planned on a stream of their own"
    return None


def reason_against_runner(runner: Any) -> str | None:
    """Why this ``ModelRunner`` cannot run two batches in one forward, or None."""
    problem = second_metadata.reason_against(runner.attn_backend)
    if problem is not None:
        return f"attention backend: {problem}"
    if runner.kv_cache_dtype != runner.dtype and not isinstance(runner.attn_backend, ReadsLevels):
        return f"the KV cache is {runner.kv_cache_dtype}, the model {runner.dtype}"
    if any(type(vars(each).get("forward_extend")).__name__ == "FlashImageLayers" for each in _backends(runner.attn_backend)):
        return "fa4's masks of images follow one batch"
    if runner.canary_manager is not None or runner.msprobe_debugger is not None:
        return "a debugger follows each forward"
    if runner.eplb_manager is not None or runner.enable_elastic_ep:
        return "experts move between ranks"
    if runner.lora_manager is not None or runner.hisparse_coordinator is not None:
        return "adapters or sparse attention follow one batch"
    from sglang.srt.layers.moe.utils import is_tbo_enabled
    from sglang.srt.state_capturer.indexer_topk import get_global_indexer_capturer
    from sglang.srt.state_capturer.routed_experts import get_global_experts_capturer

    if get_global_experts_capturer() is not None or get_global_indexer_capturer() is not None:
        return "routed experts are returned by batch"
    return "two-batch overlap splits a batch" if is_tbo_enabled() else None


def has_media(prefill: Any) -> bool:
    """Whether a prompt of this batch has images, videos or audio."""
    return any(inputs is not None for inputs in prefill.multimodal_inputs or ())


def _backends(backend: Any) -> list[Any]:
    return [backend, *(getattr(backend, name) for name in ("prefill_backend", "decode_backend") if hasattr(backend, name))]


def reason_against_batch(scheduler: Any, prefill: Any, running: Any) -> str | None:
    """Why these two batches run one after the other, or None."""
    if prefill.is_prefill_only:
        return "requests without output tokens"
    problem = reason_against_running(scheduler, running)
    if problem is None and has_media(prefill):
        problem = reason_against_media(scheduler.tp_worker.model_runner)
    if problem is not None:
        return problem
    if prefill.input_embeds is not None or prefill.replace_embeds is not None:
        return "a prompt is given as embeddings"
    if any(req.beam_group is not None for req in prefill.reqs):
        return "beam search"
    return GRAMMAR if _delayed(scheduler) and prefill.has_grammar else None
