"""If a request raises inside a scheduler's step, only that request ends; the other requests of its batch go on.

After a failure each request of the failed batch is a suspect. Its KV is released and it is prefilled again at batch 1; after a failed
decode step, two decode steps follow. A request that fails at batch 1 is answered with an error; the others continue with the tokens that
they have. A request that was in :data:`MOST_FAILURES` failed batches, but never failed at batch 1, is answered with an error too.

Some failures cannot be isolated and end the server, as in stock: an error after which the device refuses work (an illegal address, a
device assert), and an error that not every tensor-parallel rank has. Servers with pipeline stages, DP attention or disaggregation are not
isolated at all, because their loops have more state.
"""

import gc
import logging
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from sglang_gemma4.serving.failed_requests import empty_batch, end, end_free_group, merged, release, stream_ended

logger = logging.getLogger(__name__)

MOST_FAILURES = 3
"""Failed batches after which a request ends that does not fail at batch 1."""
DECODE_STEPS = 2
"""Decode steps at batch 1 after its prefill, for a suspect of a failed decode step."""
SECONDS_TO_AGREE = 30.0
"""Time limit for the other tensor-parallel ranks to report the same failure."""


@dataclass
class StepFailed(Exception):  # noqa: N818 - not an error of this code
    """A step of the scheduler raised.

    Attributes:
        error: what was raised.
        during: "schedule", "run", "sample" or "process".
        batch: the batch of the step; None if the step failed while choosing the next batch.
        lost: requests that were taken from the waiting queue and are in no batch that the scheduler knows.
    """

    error: Exception
    during: str
    batch: Any = None
    lost: tuple[Any, ...] = ()

    def __str__(self) -> str:
        return f"{type(self.error).__name__}: {self.error}"


def reason_against(scheduler: Any) -> str | None:
    """Why failures in this scheduler's steps are not isolated, or None."""
    from sglang.srt.runtime_context import get_parallel

    if getattr(scheduler.disaggregation_mode, "value", None) != "null":
        return "a server of a prefill/decode pair: its transfers are of requests that a failed step leaves half sent"
    if get_parallel().pp_size > 1:
        return "--pp-size: other stages have begun the failed batch"
    if scheduler.require_mlp_sync:
        return "DP attention: other ranks wait in a collective of the failed batch"
    if scheduler.dllm_config is not None or scheduler.enable_hisparse:
        return "a diffusion model or HiSparse keeps requests elsewhere"
    return None


class Isolation:
    """Repairs one scheduler after failed steps.

    Args:
        scheduler: SGLang's scheduler, for which :func:`reason_against` is None.
    """

    def __init__(self, scheduler: Any) -> None:
        self.scheduler = scheduler
        self.failures: dict[str, int] = {}
        """Number of failed batches, by the id of each request that was in one and goes on."""
        self._ranks = _group_of_ranks(scheduler)

    def recover(self, failed: StepFailed) -> None:
        """Keep every request that can go on in the scheduler, and answer the others with an error.

        Raises:
            Exception: the failure's own error, if the device or another rank cannot go on.
        """
        logger.error(
            "sglang-gemma4: a step failed (%s); its requests are tried one by one:\n%s",
            failed.during,
            "".join(traceback.format_exception(failed.error)),
        )
        self._must_agree(failed.error)
        self._must_work(failed.error)
        _drop_frames(failed.error)
        if failed.batch is None and not failed.lost and self._try_waiting(failed):
            return
        suspects = self._take_out(failed)
        decodes = failed.batch is None or failed.batch.forward_mode.is_decode()
        if not self._try_each(suspects, DECODE_STEPS if decodes else 0):
            self._count(suspects, failed.error)

    def _count(self, suspects: Iterable[Any], error: Exception) -> None:
        """No request failed at batch 1: end those that were in too many failed batches, even if others were the cause."""
        scheduler = self.scheduler
        there = {req.rid for req in [*scheduler.running_batch.reqs, *scheduler.waiting_queue]}
        self.failures = {rid: count for rid, count in self.failures.items() if rid in there}
        for req in suspects:
            if req.finished():
                continue
            self.failures[req.rid] = self.failures.get(req.rid, 0) + 1
            if self.failures[req.rid] < MOST_FAILURES:
                continue
            if req in scheduler.waiting_queue:
                scheduler.waiting_queue.remove(req)
            else:
                scheduler.running_batch.filter_batch(reqs_to_exclude=[req])
                release(self.scheduler, req)
            end(self.scheduler, req, error, MOST_FAILURES)

    def _must_agree(self, error: Exception) -> None:
        """Raise ``error`` unless every rank has this failure: other ranks would stay in a collective that nothing ends."""
        if self._ranks is None:
            return
        try:
            torch.distributed.monitored_barrier(self._ranks, timeout=_seconds(SECONDS_TO_AGREE))
        except RuntimeError as other:
            logger.error("sglang-gemma4: not every rank has this failure (%s): it ends the server", other)
            raise error from None

    def _must_work(self, error: Exception) -> None:
        """Raise ``error`` if the device refuses all work, as after an illegal address or a device assert."""
        try:
            touch(self.scheduler.device)
        except Exception:
            logger.error("sglang-gemma4: the device refuses work after this failure: it ends the server")
            raise error from None

    def _take_out(self, failed: StepFailed) -> list[Any]:
        """Release the failed batch's requests; returns the suspects, in order. Other released requests go to the front of the queue."""
        scheduler = self.scheduler
        suspects = [*(failed.batch.reqs if failed.batch is not None else ()), *failed.lost]
        if failed.during == "process":
            for req in suspects:
                req.is_retracted = not req.finished()  # so that a later step's result, which may exist already, is not added to it
        self._drain(failed)
        if failed.batch is None and not suspects:
            suspects = list(self._begun())
        held = list(suspects)
        prefill = failed.during in ("run", "sample") and failed.batch.forward_mode.is_extend()
        if not (prefill and not set(suspects) & set(scheduler.running_batch.reqs)):
            # It is not known which tables of running requests the failed step has partly changed.
            held += self._begun()
            scheduler.running_batch = empty_batch()
        if scheduler.chunked_req in held:
            scheduler.chunked_req = None
        held = [req for req in dict.fromkeys(held) if not req.finished()]
        for req in held:
            release(self.scheduler, req)
        scheduler.last_batch = scheduler.cur_batch_for_debug = None
        scheduler.running_batch.batch_is_full = False
        scheduler.waiting_queue = [req for req in held if req not in suspects] + [req for req in scheduler.waiting_queue if req not in held]
        return [req for req in held if req in suspects]

    def _try_waiting(self, failed: StepFailed) -> bool:
        """Whether a waiting request caused the failure; that request is ended, and the running ones go on unchanged."""
        scheduler = self.scheduler
        self._drain(failed)
        last, running, chunked = scheduler.last_batch, scheduler.running_batch, scheduler.chunked_req
        if last is not None and last.forward_mode.is_extend():
            last.filter_batch(reqs_to_exclude=[*running.reqs, *([] if chunked is None else [chunked])])  # ``last`` may be merged already
            scheduler.running_batch = merged(running, last)
        if chunked is not None:
            release(self.scheduler, chunked)
            scheduler.waiting_queue.insert(0, chunked)
        scheduler.last_batch = scheduler.chunked_req = scheduler.cur_batch_for_debug = None
        waiting, scheduler.waiting_queue = scheduler.waiting_queue, []
        return self._try_each(waiting, 0, until_one_fails=True) > 0

    def _begun(self) -> Iterable[Any]:
        """Requests that are running, were just prefilled or are being prefilled in chunks."""
        scheduler = self.scheduler
        batches = [scheduler.running_batch, scheduler.last_batch, scheduler.cur_batch_for_debug]
        yield from (req for batch in batches if batch is not None for req in batch.reqs)
        if scheduler.chunked_req is not None:
            yield scheduler.chunked_req

    def _drain(self, failed: StepFailed) -> None:
        """Process the results of earlier steps, which the overlapped loop has not processed; end what a failed one began."""
        scheduler = self.scheduler
        queue = getattr(scheduler, "result_queue", None) or ()
        allocator = scheduler.token_to_kv_pool_allocator
        if failed.during == "process":
            end_free_group(allocator)
            stream_ended(self.scheduler, failed.batch)
        while queue:
            batch, result = queue.popleft()
            if failed.during == "sample" and result.delay_sample_func is not None:
                continue  # this is the failed step: it has no tokens
            try:
                scheduler.process_batch_result(batch, result)
            except StepFailed as another:
                logger.error("sglang-gemma4: a result before it failed too: %s", another)
                end_free_group(allocator)
                stream_ended(self.scheduler, batch)

    def _try_each(self, suspects: list[Any], steps: int, until_one_fails: bool = False) -> int:
        """Prefill each suspect at batch 1, then run ``steps`` decode steps; keep those that pass. Returns how many were ended."""
        scheduler = self.scheduler
        running, waiting, chunked = scheduler.running_batch, scheduler.waiting_queue, scheduler.chunked_req
        later: list[Any] = []
        ended = 0
        for req in suspects:
            if until_one_fails and ended:
                later.append(req)
                continue
            scheduler.running_batch, scheduler.last_batch, scheduler.waiting_queue = empty_batch(), None, [req]
            scheduler.chunked_req = None
            try:
                ran = self._run_alone(req, steps)
            except StepFailed as failed:
                self._give_up(req, failed)
                ended += 1
                continue
            batch = scheduler.last_batch
            if ran and steps == 0 and batch.forward_mode.is_extend():
                batch.filter_batch()
                running = merged(running, batch)
            elif not req.finished():
                if req.kv.holds_kv or req.lock is not None:
                    release(self.scheduler, req)
                later.append(req)
        scheduler.last_batch = scheduler.cur_batch_for_debug = None
        running.batch_is_full = False
        scheduler.running_batch, scheduler.waiting_queue, scheduler.chunked_req = running, later + waiting, chunked
        return ended

    def _give_up(self, req: Any, failed: StepFailed) -> None:
        """End a request that failed at batch 1.

        Raises:
            Exception: the failure's own error, as in :meth:`recover`.
        """
        self._must_agree(failed.error)
        self._must_work(failed.error)
        _drop_frames(failed.error)
        end_free_group(self.scheduler.token_to_kv_pool_allocator)
        if req.finished():  # its last tokens were added before something else failed
            self.scheduler.output_streamer.stream_output([req], req.return_logprob)
            return
        release(self.scheduler, req)
        end(self.scheduler, req, failed.error)

    def _run_alone(self, req: Any, steps: int) -> bool:
        """Prefill all of ``req`` and decode it for ``steps`` steps. Returns whether there was memory for it.

        Raises:
            StepFailed: one of its steps raised.
        """
        while self._step():
            if req.finished() or self.scheduler.chunked_req is None:
                break
        else:
            return False
        for _ in range(steps):
            if req.finished() or not self._step():
                break
        return True

    def _step(self) -> bool:
        """Run one iteration of SGLang's loop without receiving requests. Returns whether there was a batch to run."""
        scheduler = self.scheduler
        plan = scheduler.get_next_batch_to_run(running_batch=scheduler.running_batch, last_batch=scheduler.last_batch)
        scheduler.running_batch, batch = plan.running_batch, plan.batch_to_run
        scheduler.last_batch = scheduler.cur_batch_for_debug = batch
        if batch is None:
            return False
        result = scheduler.run_batch(batch)
        if scheduler.enable_overlap:
            scheduler._apply_war_barrier()
            scheduler.launch_batch_sample_if_needed(result, batch)
            batch = batch.copy()
        scheduler.process_batch_result(batch, result)
        return True


def touch(device: str) -> None:
    """Synchronise a device and run one addition on it; raises if an earlier error has made the device unusable."""
    torch.get_device_module(device).synchronize()
    torch.zeros(1, device=device).add_(1).item()


def _drop_frames(error: BaseException | None) -> None:
    """Free the activations of a failed forward, which its frames hold."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__
    gc.collect()


def _group_of_ranks(scheduler: Any) -> Any:
    """A gloo group used only to agree on failures, since no other message may reach that barrier. None with one rank."""
    from sglang.srt.runtime_context import get_parallel

    if get_parallel().tp_size == 1:
        return None
    ranks = torch.distributed.get_process_group_ranks(scheduler.tp_cpu_group)
    return torch.distributed.new_group(ranks, backend="gloo", timeout=_seconds(2 * SECONDS_TO_AGREE))


def _seconds(seconds: float) -> Any:
    from datetime import timedelta

    return timedelta(seconds=seconds)
