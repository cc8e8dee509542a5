"""SGLang's prefill chunks while requests run: their size, and whether a few waiting tokens are prefilled yet.

:mod:`speculative.admission` decides from measured times. This module holds the operator's limits, and reads from and
writes to the scheduler.
"""

import functools
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.runtime_context import get_spec

from sglang_gemma4.models.schedule import joined_graph
from sglang_gemma4.patching import note, switches, tell
from sglang_gemma4.speculative import beside_reasons, step_clock
from sglang_gemma4.speculative.admission import Admission, Way, in_a_graph
from sglang_gemma4.speculative.beside_bounds import BALANCED, LATENCY, Gap, gap, most_tokens

logger = logging.getLogger(__name__)
NAME = "prefill_beside"
TOLD_EVERY = 128
"""Mixed batches between two log lines with the measured times."""


@dataclass
class _Process:
    """What the scheduler of this process keeps between steps.

    Attributes:
        mixed: mixed batches that were run.
        next: how the prefill that was chosen runs.
        owed: whether the last prefill ran alone while requests waited for their next token.
    """

    mixed: int = 0
    next: Way = Way.BESIDE
    owed: bool = False


_here = _Process()


@functools.cache
def admission() -> Admission:
    """The :class:`Admission` of this process's scheduler."""
    bound = gap()
    if not step_clock.by_card():
        if bound in (BALANCED, LATENCY):  # seconds as the host reads them were measured to slow long prompts
            tell(NAME, "no GPU times the steps (card_clock), so pauses between tokens are bounded by two decode steps alone")
            bound = Gap()
        elif bound.seconds:
            tell(NAME, f"{switches.BESIDE_GAP} bounds pauses by times as the host reads them, since no GPU times the steps (card_clock)")
    return Admission(bound, read_late=not step_clock.by_card())


def measured() -> bool:
    """Whether measured times decide the chunk size: the operator gave no number of tokens."""
    return most_tokens() is None


def times(scheduler: Any) -> bool:
    """Whether steps of this server are timed: it may run mixed batches, and the operator gave no number of tokens."""
    return not beside_reasons.idle(scheduler) and beside_reasons.reason_against_server(scheduler) is None and measured()


@contextmanager
def bounded(scheduler: Any, running: Any, last: Any) -> Iterator[None]:
    """Context in which SGLang's chunk size is limited while requests run, so that no step is much longer than a plain
    decode step.

    Several short prompts fill a chunk together. An idle server keeps the chunk size that it was started with. So does
    one that cannot run mixed batches: alternating short chunks with decode steps would only delay both.
    """
    size, _here.next = scheduler.chunked_prefill_size, Way.BESIDE
    if (
        size is None
        or scheduler.is_mixed_chunk
        or not (_waits(scheduler) and busy(running, last))
        or beside_reasons.reason_against_next(scheduler)
        or beside_reasons.reason_against_running(scheduler, running)
    ):
        yield
        return
    asked, requests = most_tokens(), decoded(running, last)
    if asked is None:
        most = _by_times(scheduler, requests, size)
    else:
        most = in_a_graph(asked, requests * rows_each(scheduler), _unpadded(scheduler))
    scheduler.chunked_prefill_size = min(size, -(-most // scheduler.page_size) * scheduler.page_size)
    try:
        yield
    finally:
        scheduler.chunked_prefill_size = size


def _waits(scheduler: Any) -> bool:
    """Whether a prompt may be chosen next. Most iterations only decode and should not pay for the choice."""
    return scheduler.chunked_req is not None or bool(scheduler.waiting_queue) or scheduler.grammar_manager.has_waiting_grammars()


def _by_times(scheduler: Any, requests: int, size: int) -> int:
    """Prompt tokens of the next step, at most ``size``."""
    each, joining = rows_each(scheduler), _joining(scheduler, requests)
    waiting = max(_waiting_tokens(scheduler, joining), 1)
    most = admission().tokens(requests, each, waiting, size, _unpadded(scheduler), joining)
    way = admission().way(requests, each, min(most, waiting), min(size, waiting), joining)
    if way is Way.TRIED_IN_TURN and beside_reasons.media_waits(scheduler):
        way = Way.BESIDE  # a prefill of images is not timed, so the trial would not end
    _here.next = way
    if way is not Way.IN_TURN:
        return most
    note(NAME, "alternating prefills and decode steps were measured to bring more prompt tokens a second than mixed batches, at times")
    return admission().in_turn(requests, each, most, size, joining)


def joins(loads: bool = False) -> bool:
    """Whether the chosen prefill shares a forward with the running requests, by measured times where they count; if
    not, they run next.

    Args:
        loads: it waits for keys from the host. It is then not timed, and a trial with it would not end.
    """
    if loads and _here.next is Way.TRIED_IN_TURN:
        _here.next = Way.BESIDE
    _here.owed = _here.next is not Way.BESIDE
    return not _here.owed


def _unpadded(scheduler: Any) -> Sequence[int]:
    """Row counts of a mixed batch that are not padded; empty where there are no graphs, since no row count is padded
    then."""
    graphs = joined_graph.graphs_of(scheduler.tp_worker.model_runner)
    return () if graphs is None else graphs.capture_num_tokens


def busy(running: Any, last: Any) -> bool:
    """Whether requests are decoded next: those of the running batch, and those whose prefill has just ended."""
    return decoded(running, last) > 0


def decoded(running: Any, last: Any) -> int:
    """Upper bound on requests in the next decode step; excludes requests that finish with their next token and
    scoring requests."""
    prefilled = last is not None and last.forward_mode in (ForwardMode.EXTEND, ForwardMode.MIXED) and not last.is_prefill_only
    joining = [req for req in last.reqs if req is not last.chunked_req] if prefilled else []
    return sum(not (req.finished() or req.next_output_finishes_by_length()) for req in (*running.reqs, *joining))


def gather(original: Callable[..., bool], scheduler: Any, running: Any) -> bool:
    """Around ``_should_defer_prefill``: run a plain step first where few tokens wait and a mixed batch costs more
    than they lose.

    A plain step also follows an alternating prefill: SGLang would prefill for as long as prompts wait, and running
    requests would wait for all of them.
    """
    owed, _here.owed = _here.owed, False
    return original(scheduler, running) or _gathers(scheduler, running, owed)


def _gathers(scheduler: Any, running: Any, owed: bool) -> bool:
    if running.is_empty() or scheduler.is_mixed_chunk or scheduler.chunked_prefill_size is None:
        return False
    if scheduler.chunked_req is not None and not owed:
        return False
    if beside_reasons.reason_against_next(scheduler) or beside_reasons.reason_against_running(scheduler, running) or not measured():
        return False
    if owed:
        return True
    requests, each = len(running.reqs), rows_each(scheduler)
    if admission().looks(requests):
        return True
    joining = _joining(scheduler, requests)
    tokens = _waiting_tokens(scheduler, joining)
    return admission().holds(requests, each, joining, tokens, scheduler.chunked_prefill_size, time.monotonic())


def arrived(result: Any) -> None:
    """Record the time of a step whose result was processed, if it followed another step."""
    shape = getattr(result, "prompt_tokens_beside", None)
    if shape is None:
        admission().pause()
        return
    tokens, requests, rows = shape
    admission().arrived(tokens, requests, rows, step_clock.ended(result))
    if tokens and requests:
        _here.mixed += 1
        if _here.mixed % TOLD_EVERY == 0:
            logger.info("sglang-gemma4: %d mixed batches; %s", _here.mixed, admission())


def rows_each(scheduler: Any) -> int:
    """Rows of a running request in its next step."""
    return 1 if scheduler.spec_algorithm.is_none() else int(get_spec().speculative_num_draft_tokens)


def _joining(scheduler: Any, running: int) -> int:
    """Waiting requests that may join ``running`` ones: at most as many as there are free places."""
    taken = running + (scheduler.chunked_req is not None)
    return max(min(len(scheduler.waiting_queue), int(scheduler.max_running_requests) - taken), 0)


def _waiting_tokens(scheduler: Any, joining: int) -> int:
    """Upper bound of prompt tokens left to prefill: the chunked request's rest plus the first ``joining`` queued
    ones. Prefix hits are not subtracted."""
    cut = scheduler.chunked_req
    rest = 0 if cut is None else len(cut.origin_input_ids) - cut.prefix_len
    return rest + sum(len(req.origin_input_ids) for req in scheduler.waiting_queue[: min(joining, beside_reasons.LOOKED_AT)])
