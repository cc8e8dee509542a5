"""A prefill and a decode or verify step of the running requests in one iteration of the scheduler, with one forward of the target.

SGLang's scheduler runs either a prefill or the running batch. Here it does both, one after the other, each with SGLang's own code from the
slots of its tokens to the result's bookkeeping, and only the forward of the target is shared: the running batch comes first, and where it
runs the target the rows of the prefill go through with it (:mod:`models.schedule.joined_forward`); where the prefill would run the target
afterwards, it gets the output that was kept for it.
"""

import functools
import logging
from collections.abc import Callable
from typing import Any

from sglang.srt.environ import envs
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardBatch, ForwardMode
from sglang.srt.runtime_context import get_disagg, get_exec, get_lora, get_parallel, get_spec

from sglang_gemma4 import switches
from sglang_gemma4.attention import image_spans, second_metadata
from sglang_gemma4.attention.image_masks import ImageAttention
from sglang_gemma4.models.schedule import joined_forward
from sglang_gemma4.patching import decline, takes
from sglang_gemma4.speculative import prompt_chunks

logger = logging.getLogger(__name__)
NAME, MEDIA_FIXES = "prefill_beside", "SGLANG_GEMMA4_MEDIA_FIXES"
Run = Callable[..., Any]


class Pair:
    """The forward that two batches share while the scheduler runs first the one, then the other.

    Args:
        prefill: a ``ScheduleBatch`` that is prepared for a prefill and was not run.
        running: the ``ScheduleBatch`` of the running requests, prepared for a decode step.
        resolve: puts the input ids of a ``ScheduleBatch`` on the device, on the stream of the forward.
    """

    def __init__(self, prefill: Any, running: Any, resolve: Callable[[Any], None]) -> None:
        self.prefill, self.running = prefill, running
        self.resolve = resolve
        self.kept: Any = None
        self.ran = False

    def forward(self, original: Run, runner: Any, forward_batch: Any, *args: Any, **kwargs: Any) -> Any:
        """Around ``ModelRunner.forward``, for the running batch and then for the prefill.

        Where the joined forward raises, each batch gets a forward of its own, which writes its slots of the KV pool again, and no batches
        of this process are joined any more.
        """
        mode = forward_batch.forward_mode
        if mode == ForwardMode.EXTEND and self.kept is not None:
            output, self.kept = self.kept, None
            return output
        if self.ran or not (mode.is_decode() or mode.is_target_verify()):
            return original(runner, forward_batch, *args, **kwargs)
        self.ran = True
        try:
            self.kept, output = self._joined(runner, forward_batch)
            return output
        except Exception as error:
            give_up(error, several_ranks=get_parallel().tp_size > 1)
        # Out of the handler, which would keep the failed forward's tensors: it may have failed for want of memory.
        return original(runner, forward_batch, *args, **kwargs)

    def _joined(self, runner: Any, forward_batch: Any) -> tuple[Any, Any]:
        self.resolve(self.prefill)
        seeds = CaptureHiddenMode.NULL if self.prefill.spec_algorithm.is_none() else CaptureHiddenMode.FULL
        prefill = ForwardBatch.init_new(
            self.prefill,
            runner,
            capture_hidden_mode=None if seeds == CaptureHiddenMode.NULL else seeds,  # None: what requests and server ask for
            return_hidden_states_before_norm=False,
        )
        held = [req.kv.kv_allocated_len for req in self.running.reqs]
        return joined_forward.forward(runner, prefill, forward_batch, held)


_open: list[Pair] = []
_given_up: list[str] = []
"""Why this process joins no forwards any more, if one failed."""
counts = {"steps": 0, "prompt tokens": 0, "running requests": 0}
"""What was run together in this process; read by tests."""


def give_up(error: Exception, several_ranks: bool) -> None:
    """After a joined forward that raised: say it, and join no more.

    Raises:
        Exception: ``error`` itself where several ranks share a forward: the others may not have failed, and would wait for this one.
    """
    logger.error("sglang-gemma4: a prefill beside running requests failed", exc_info=error)
    if several_ranks:
        raise error
    reason = f"a joined forward failed, {type(error).__name__}: {(str(error).splitlines() or [''])[0][:160]}"
    _given_up.append(reason)
    decline(NAME, reason)


def open_pair(runner: Any) -> Pair | None:
    """The pair that this model runner's next forward belongs to, if it is the target's and there is one."""
    return _open[-1] if _open and not runner.is_draft_worker else None


def choose(scheduler: Any, plan: Any) -> Any:
    """``plan``, what SGLang would run next, with the running batch made ready beside its prefill where they can go together."""
    prefill, running = plan.batch_to_run, plan.running_batch
    if prefill is None:
        prompt_chunks.admission().pause()
    if prefill is None or prefill.forward_mode != ForwardMode.EXTEND or running is prefill or running.is_empty():
        return plan
    reason = server_problem(scheduler) or batch_problem(scheduler, prefill, running)
    if not takes(NAME, reason, "prefill and decode alternate"):
        return plan
    ready = scheduler.update_running_batch(running)
    if ready is not None and not ready.is_empty():
        prefill.beside = ready
    return plan


def run(original: Run, scheduler: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
    """Around ``Scheduler.run_batch``: both batches, if one was made ready beside this one. The result carries the other's."""
    running = vars(batch).pop("beside", None)
    tokens = batch.extend_num_tokens if batch.forward_mode.is_extend() else 0
    media = _has_media(batch)  # the time of such a step is that of its images
    requests = 0 if batch.forward_mode.is_extend() else len(batch.reqs)
    if running is None:
        result = original(scheduler, batch, *args, **kwargs)
        result.prompt_tokens_beside = None if media else (tokens, requests)
        return result
    from sglang.srt.managers.overlap_utils import resolve_forward_inputs

    pair = Pair(batch, running, lambda prefill: resolve_forward_inputs(prefill, scheduler.future_map))
    disturb = getattr(scheduler.model_worker, "prefilled", None)
    if disturb is not None:
        disturb()
    _open.append(pair)
    try:
        place = scheduler.batch_record_ct if scheduler.enable_overlap else None
        of_running = original(scheduler, running)
        joined = pair.kept is not None
        pinned = None
        if place is not None:
            # SGLang keeps the tensors of a step's batch for two steps, in a ring of two. Both batches are of one step.
            pinned, scheduler.batch_record_ct = scheduler.batch_record_buf[scheduler.batch_record_ct], place
        result = original(scheduler, batch, *args, **kwargs)
        if pinned is not None:
            scheduler.batch_record_buf[scheduler.batch_record_ct].append(pinned)
    finally:
        _open.remove(pair)
    # An event of one half does not cover what the other one reads; without it the scheduler's stream waits for both.
    scheduler.model_worker.last_shared_read_runner.shared_read_done_event = None
    result.beside = (running.copy(), of_running)
    if not joined:  # its time is that of no kind of step
        return result
    result.prompt_tokens_beside = None if media else (tokens, len(running.reqs))
    counts["steps"] += 1
    counts["prompt tokens"] += tokens
    counts["running requests"] += len(running.reqs)
    return result


def results(batch: Any, result: Any) -> list[tuple[Any, Any]]:
    """The batches and results of a step, in the order they were run: one, or the running batch's and the prefill's."""
    beside = getattr(result, "beside", None)
    return [(batch, result)] if beside is None else [beside, (batch, result)]


def server_problem(scheduler: Any) -> str | None:
    """Why no prefill of this server goes beside a decode step, or None."""
    return _given_up[0] if _given_up else _fixed_problem(scheduler)


def next_problem(scheduler: Any) -> str | None:
    """Why prompts that may be next do not go beside a decode step, as far as that is known before they are chosen; or None."""
    waiting = [*scheduler.waiting_queue[: prompt_chunks.LOOKED_AT], *([] if scheduler.chunked_req is None else [scheduler.chunked_req])]
    media = any(req.multimodal_inputs is not None for req in waiting)
    return server_problem(scheduler) or (media_problem(scheduler.tp_worker.model_runner) if media else None)


def media_problem(runner: Any) -> str | None:
    """Why prompts with images, videos or audio do not go beside a decode step, or None."""
    backend = getattr(runner.attn_backend, "prefill_backend", runner.attn_backend)
    if isinstance(getattr(backend, "extend_attention_fwd", None), ImageAttention) or type(backend).__name__ == "Gemma4CpuAttention":
        return None
    if not switches.is_on(MEDIA_FIXES) or image_spans.bidirectional(runner.model_config.hf_config):
        return f"a prompt has images, video or audio, whose masks a {type(backend).__name__} gets for a whole batch"
    return None


@functools.cache
def _fixed_problem(scheduler: Any) -> str | None:
    """What does not change while a scheduler runs; asked for in each of its iterations."""
    parallel, execution = get_parallel(), get_exec()
    for what, size in (
        ("pipeline", parallel.pp_size), ("attention data", parallel.attn_dp_size), ("context", parallel.attn_cp_size),
        ("decode context", parallel.attn_dcp_size),
    ):  # fmt: skip
        if size > 1:
            return f"{what} parallel over {size} ranks"
    if get_disagg().disaggregation_mode != "null":
        return "prefill and decode are on servers of their own"
    if not scheduler.is_generation or scheduler.dllm_config is not None:
        return "the model does not decode token by token"
    if get_lora().enable_lora:
        return "LoRA adapters follow the rows of one batch"
    if execution.deterministic.enable_deterministic_inference:
        return "deterministic inference: a row's rounding would depend on what runs beside it"
    if execution.moe.expert_distribution_recorder_mode is not None:
        return "the use of experts is recorded by batch"
    if scheduler.enable_hierarchical_cache or scheduler.enable_unified_cache_external_linker or scheduler.enable_hisparse:
        return "the KV cache has a tier on the host, whose loads follow one batch"
    if scheduler.enable_unified_memory or scheduler.enable_pdmux:
        return "unified memory and PD multiplexing follow one batch's forward"
    return speculation_problem(scheduler) or runner_problem(scheduler.tp_worker.model_runner)


def speculation_problem(scheduler: Any) -> str | None:
    """Why drafts of this server cannot be verified beside a prefill, or None."""
    from sglang.srt.speculative.frozen_kv_mtp_worker_v2 import FrozenKVMTPWorkerV2

    from sglang_gemma4.speculative.worker_v1 import FrozenKVMTPWorkerV1

    if scheduler.spec_algorithm.is_none():
        return None
    worker = scheduler.model_worker
    if not isinstance(worker, FrozenKVMTPWorkerV2) or isinstance(worker, FrozenKVMTPWorkerV1):
        return f"drafts are those of a {type(worker).__name__}"
    if get_spec().speculative_eagle_topk != 1:
        return f"--speculative-eagle-topk {get_spec().speculative_eagle_topk}: drafts are trees"
    if worker.plan_stream is not None:
        return "verify steps are planned on a stream of their own"
    return None


def runner_problem(runner: Any) -> str | None:
    """Why this ``ModelRunner`` cannot run two batches in one forward, or None."""
    problem = second_metadata.problem_with(runner.attn_backend)
    if problem is not None:
        return f"attention backend: {problem}"
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


def _has_media(prefill: Any) -> bool:
    return any(inputs is not None for inputs in prefill.multimodal_inputs or ())


def _backends(backend: Any) -> list[Any]:
    return [backend, *(getattr(backend, name) for name in ("prefill_backend", "decode_backend") if hasattr(backend, name))]


def batch_problem(scheduler: Any, prefill: Any, running: Any) -> str | None:
    """Why these two batches run one after the other, or None."""
    if running.is_prefill_only or prefill.is_prefill_only:
        return "requests without output tokens"
    problem = media_problem(scheduler.tp_worker.model_runner) if _has_media(prefill) else None
    if problem is not None:
        return problem
    if prefill.input_embeds is not None or prefill.replace_embeds is not None:
        return "a prompt is given as embeddings"
    if any(req.beam_group is not None for req in (*prefill.reqs, *running.reqs)):
        return "beam search"
    delayed = scheduler.enable_overlap and scheduler.spec_algorithm.is_none()
    if delayed and (prefill.has_grammar or running.has_grammar or envs.SGLANG_ENABLE_DELAY_SAMPLE.get()):
        return "without speculation the overlapped scheduler samples under a grammar after the next step has begun"
    if delayed and running.sampling_info.penalizer_orchestrator.is_required:
        # cumulate_penalty_output_tokens takes the last token that the host knows, which may be one less after a prefill.
        return "without speculation the overlapped scheduler's penalties depend on when a prefill's token is read"
    if not running.check_decode_mem():
        return "the KV pool has no room for the running requests' next tokens, so some may be retracted"
    return None
