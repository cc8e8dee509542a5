"""Mixed batches: a prefill and a decode or verify step of the running requests, with one forward of the target.

SGLang's scheduler runs either a prefill or the running batch. Here it runs both in one iteration, one after the
other. Each uses SGLang's own code, from the slots of its tokens to the result's bookkeeping; only the target's
forward is shared. The running batch comes first, and the rows of the prefill go through the target with it
(:mod:`models.schedule.joined_forward`). When the prefill would run the target, it gets the output that was kept for
it.
"""

import logging
from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardBatch, ForwardMode
from sglang.srt.runtime_context import get_parallel, get_schedule

from sglang_gemma4.models.schedule import host_loads, joined_forward, whole_graphs
from sglang_gemma4.patching import decline, note, takes, tell
from sglang_gemma4.speculative import beside_reasons, prompt_chunks, step_clock

logger = logging.getLogger(__name__)
NAME = "prefill_beside"
Run = Callable[..., Any]


class Pair:
    """The forward that two batches share while the scheduler runs the running batch, then the prefill.

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
        self.odd = False
        self._written: torch.Tensor | None = None

    def written(self, slots: torch.Tensor) -> torch.Tensor:
        """The virtual slots that the mixed batch writes; ``slots`` are those of the batch that was run, the running
        one first."""
        if self._written is None:
            self._written = torch.cat([slots, self.prefill.out_cache_loc])
        return self._written

    def forward(self, original: Run, runner: Any, forward_batch: Any, *args: Any, **kwargs: Any) -> Any:
        """Around ``ModelRunner.forward``, for the running batch and then for the prefill.

        If the shared forward raises, each batch gets its own forward, which writes its slots of the KV pool again.
        This process then runs no more mixed batches.
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
        # Outside the handler, which would keep the failed forward's tensors: it may have failed for lack of memory.
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
        self.odd = whole_graphs.long_prompts(prefill)
        with host_loads.waited_for(runner.token_to_kv_pool, self.prefill.hicache_consumer_index):
            return joined_forward.forward(runner, prefill, forward_batch, held)


_open: list[Pair] = []
counts = {"steps": 0, "prompt tokens": 0, "running requests": 0}
"""What ran in mixed batches of this process; read by tests."""


def give_up(error: Exception, several_ranks: bool) -> None:
    """After a shared forward that raised: log it, and run no more mixed batches.

    Raises:
        Exception: ``error`` itself where several ranks share a forward: the others may not have failed, and would
            wait for this one.
    """
    logger.error("sglang-gemma4: a mixed batch failed", exc_info=error)
    if several_ranks:
        raise error
    reason = f"a mixed batch failed, {type(error).__name__}: {(str(error).splitlines() or [''])[0][:160]}"
    beside_reasons.given_up.append(reason)
    decline(NAME, reason)


def capture_whole(graphs: Any) -> None:
    """Capture graphs of whole mixed batches, where the model and the server allow them."""
    runner = graphs.model_runner
    if runner.is_draft_worker or get_schedule().enable_mixed_chunk:
        return
    if (
        beside_reasons.reason_against_unasked(runner)
        or beside_reasons.reason_against_flags()
        or beside_reasons.reason_against_runner(runner)
    ):
        return
    reason = whole_graphs.reason_against(graphs)
    if reason is None:
        began = perf_counter()
        try:
            whole = whole_graphs.capture(graphs)
        except Exception as error:  # such as a full GPU memory: pieces do the same
            reason = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:160]}"
        else:
            sizes = ", ".join(map(str, whole.sizes))
            tell(NAME, f"graphs of whole mixed batches took {perf_counter() - began:.1f} s, for {sizes} rows")
            return
    note(NAME, f"a mixed batch goes in pieces: {reason}")


def open_pair(runner: Any) -> Pair | None:
    """The pair that this model runner's next forward belongs to, or None; only the target's runner has one."""
    return _open[-1] if _open and not runner.is_draft_worker else None


def one_forward(original: Run, runner: Any, forward_batch: Any, *args: Any, **kwargs: Any) -> Any:
    """Around ``ModelRunner.forward``."""
    pair = open_pair(runner)
    if pair is None:
        return original(runner, forward_batch, *args, **kwargs)
    return pair.forward(original, runner, forward_batch, *args, **kwargs)


def in_flight(original: Callable[..., None], allocator: Any, forward_done: Any, slots: torch.Tensor | None) -> None:
    """Around a unified pool's ``set_inflight_forward``: protect the pages that a forward writes from being moved, for
    both batches of a pair.

    SGLang calls it once for each batch, and only the last call counts.
    """
    if _open and slots is not None:
        slots = _open[-1].written(slots)
    original(allocator, forward_done, slots)


def no_graph(original: Callable[..., bool], graphs: Any, forward_batch: Any) -> bool:
    """Around ``DecodeCudaGraphRunner.can_run_graph``: the target's decode graphs have no rows for a prompt. A draft's are its own."""
    return open_pair(graphs.model_runner) is None and original(graphs, forward_batch)


def next_batches(original: Run, scheduler: Any, running_batch: Any, last_batch: Any) -> Any:
    """Around ``get_next_batch_to_run``: limit the prefill to what the operator wants, and prepare the running batch
    to share its forward."""
    if beside_reasons.idle(scheduler):
        return original(scheduler, running_batch=running_batch, last_batch=last_batch)
    with prompt_chunks.bounded(scheduler, running_batch, last_batch):
        plan = original(scheduler, running_batch=running_batch, last_batch=last_batch)
    return choose(scheduler, plan)


def choose(scheduler: Any, plan: Any) -> Any:
    """If the planned prefill can share a forward with the running batch, prepare that batch and attach it; returns
    ``plan``."""
    prefill, running = plan.batch_to_run, plan.running_batch
    if prefill is None and prompt_chunks.times(scheduler):
        prompt_chunks.admission().pause()
    if prefill is not None and prefill.forward_mode == ForwardMode.MIXED:
        takes(NAME, "--enable-mixed-chunk: SGLang mixes decode rows into prefills")
    if prefill is None or prefill.forward_mode != ForwardMode.EXTEND or running is prefill or running.is_empty():
        return plan
    reason = beside_reasons.reason_against_server(scheduler) or beside_reasons.reason_against_batch(scheduler, prefill, running)
    if not takes(NAME, reason, "prefill and decode alternate") or not prompt_chunks.joins(host_loads.pending(prefill)):
        return plan
    ready = scheduler.update_running_batch(running)
    if ready is not None and not ready.is_empty():
        prefill.beside = ready
    return plan


def run(original: Run, scheduler: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
    """Around ``Scheduler.run_batch``: run both batches if a running batch is attached to this one. The result carries
    the other result."""
    running = vars(batch).pop("beside", None)
    tokens = batch.extend_num_tokens if batch.forward_mode.is_extend() else 0
    # The time of such a step depends on its images, or on a copy from the host.
    untimed = batch.forward_mode.is_extend() and (beside_reasons.has_media(batch) or host_loads.pending(batch))
    requests = 0 if batch.forward_mode.is_extend() else len(batch.reqs)
    if running is None:
        result = original(scheduler, batch, *args, **kwargs)
        if prompt_chunks.times(scheduler):
            step_clock.mark(scheduler, result)
            result.prompt_tokens_beside = None if untimed else (tokens, requests, tokens + requests * prompt_chunks.rows_each(scheduler))
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
    step_clock.mark(scheduler, result)
    # An event of one half does not cover what the other one reads; without it the scheduler's stream waits for both.
    scheduler.model_worker.last_shared_read_runner.shared_read_done_event = None
    result.beside = (running.copy(), of_running)
    if not joined or pair.odd:  # its time is not comparable with any type of step
        return result
    rows = tokens + len(running.reqs) * prompt_chunks.rows_each(scheduler)
    result.prompt_tokens_beside = None if untimed else (tokens, len(running.reqs), rows)
    counts["steps"] += 1
    counts["prompt tokens"] += tokens
    counts["running requests"] += len(running.reqs)
    return result


def results(batch: Any, result: Any) -> list[tuple[Any, Any]]:
    """The batches and results of a step, in the order they were run: one, or the running batch's and the prefill's."""
    beside = getattr(result, "beside", None)
    return [(batch, result)] if beside is None else [beside, (batch, result)]


def process(original: Callable[..., None], scheduler: Any, batch: Any, result: Any) -> None:
    """Around ``process_batch_result``."""
    for ran in results(batch, result):
        original(scheduler, *ran)
    if prompt_chunks.times(scheduler):
        prompt_chunks.arrived(result)


def advance_grammar(_result: None, scheduler: Any) -> None:
    """After ``_advance_pending_grammar``, which knows one batch of a queued step: advance the running batch's
    grammars too, because verify reads them."""
    for batch, result in scheduler.result_queue:
        for ran, of_ran in results(batch, result)[:-1]:
            scheduler.batch_result_processor.advance_grammar_fsm(of_ran, ran)


def finishing(found: list[Any], scheduler: Any, batch: Any) -> list[Any]:
    """After ``_reqs_finishing_inflight``, which knows one batch of a queued step: its requests that end by length get no further step."""
    if not scheduler.enable_skip_finishing_decode or not scheduler.result_queue:
        return found
    beside = {req for ran, _ in results(*scheduler.result_queue[0])[:-1] for req in ran.reqs} - set(found)
    return [*found, *(req for req in batch.reqs if req in beside and req.beam_group is None and req.next_output_finishes_by_length())]
