"""Failures that one request's data causes, for the isolation of requests. ``TEST_INSTRUMENTS`` names functions here (``everywhere``).

A request is poisoned by a token in its prompt, which says where it fails; a failure of a decode step comes with the third.
"""

import functools
import importlib
from collections.abc import Callable, Sequence
from typing import Any

POISON = {
    name: 301 + place
    for place, name in enumerate(
        ("prefill", "prefill_behind", "decode", "preparation", "result", "admission", "receipt", "two_together", "always_together")
    )
}
"""The token of each kind of failure, named as the function that causes it."""
DECODES = 3
SAID = "poisoned"


def _poisoned(name: str, reqs: Sequence[Any]) -> list[Any]:
    return [req for req in reqs if POISON[name] in req.origin_input_ids]


def _around(module: str, owner: str, method: str, wrapper: Callable[..., Any]) -> None:
    where = getattr(importlib.import_module(module), owner)
    original = getattr(where, method)

    @functools.wraps(original)  # a hook that goes here later finds the source that it was written for
    def faulty(*args: Any, **kwargs: Any) -> Any:
        return wrapper(original, *args, **kwargs)

    setattr(where, method, faulty)


def _in_worker(fails: Callable[[Any], bool], behind: bool) -> None:
    """Raise in the target's forward of a batch that ``fails`` names, before or behind the model."""
    current: list[Any] = []

    def batch_of(original: Any, worker: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        if batch is None or not hasattr(batch, "reqs"):
            return original(worker, batch, *args, **kwargs)
        current[:] = [batch]
        result = original(worker, batch, *args, **kwargs)
        if fails(batch):  # a forward of another way, as of a mixed batch
            raise RuntimeError(SAID)
        return result

    def forward(original: Any, runner: Any, *args: Any, **kwargs: Any) -> Any:
        doomed = not runner.is_draft_worker and bool(current) and fails(current[0])
        if doomed and not behind:
            raise RuntimeError(SAID)
        result = original(runner, *args, **kwargs)
        if doomed:
            raise RuntimeError(SAID)
        return result

    for module, owner in (
        ("sglang.srt.managers.tp_worker", "TpModelWorker"),
        ("sglang.srt.speculative.frozen_kv_mtp_worker_v2", "FrozenKVMTPWorkerV2"),
    ):
        _around(module, owner, "forward_batch_generation", batch_of)
    _around("sglang.srt.model_executor.model_runner", "ModelRunner", "forward", forward)


def _is_prefill(batch: Any) -> bool:
    return bool(batch.forward_mode.is_extend() and not batch.forward_mode.is_target_verify())


def prefill() -> None:
    """The model's prefill raises."""
    _in_worker(lambda batch: _is_prefill(batch) and bool(_poisoned("prefill", batch.reqs)), behind=False)


def prefill_behind() -> None:
    """The prefill raises with its keys and values written."""
    _in_worker(lambda batch: _is_prefill(batch) and bool(_poisoned("prefill_behind", batch.reqs)), behind=True)


def two_together() -> None:
    """A prefill of two poisoned requests raises, and each alone does not, as with images of two formats in one batch."""
    _in_worker(lambda batch: _is_prefill(batch) and len(_poisoned("two_together", batch.reqs)) > 1, behind=False)


def decode() -> None:
    """A decode or verify step raises, with its keys and values written."""
    _in_worker(
        lambda batch: not _is_prefill(batch) and any(len(req.output_ids) >= DECODES for req in _poisoned("decode", batch.reqs)), behind=True
    )


def always_together() -> None:
    """A decode step raises if a poisoned request is batched with another one; alone it does not."""
    _in_worker(
        lambda batch: not _is_prefill(batch) and len(batch.reqs) > 1 and bool(_poisoned("always_together", batch.reqs)), behind=False
    )


def preparation() -> None:
    """Sampling a prefill's tokens cannot be prepared: its requests have KV by then but are in no batch."""

    def made(original: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        if _poisoned("preparation", batch.reqs):
            raise ValueError(SAID)
        return original(batch, *args, **kwargs)

    where = importlib.import_module("sglang.srt.sampling.sampling_batch_info").SamplingBatchInfo
    original = where.from_schedule_batch
    where.from_schedule_batch = classmethod(lambda _cls, *args, **kwargs: made(original, *args, **kwargs))


def admission() -> None:
    """The look-up of a request's prefix raises: nothing of it is allocated."""

    def begin(original: Any, req: Any, *args: Any, **kwargs: Any) -> Any:
        if _poisoned("admission", [req]):
            raise ValueError(SAID)
        return original(req, *args, **kwargs)

    _around("sglang.srt.managers.schedule_batch", "Req", "init_next_round_input", begin)


def result() -> None:
    """A step's tokens cannot be added to a request, after those of others were, one of which has ended."""

    def update(original: Any, req: Any, *args: Any, **kwargs: Any) -> Any:
        if _poisoned("result", [req]) and len(req.output_ids) >= DECODES:
            raise KeyError(SAID)
        return original(req, *args, **kwargs)

    _around("sglang.srt.managers.schedule_batch", "Req", "update_finish_state", update)


def receipt() -> None:
    """A request cannot be taken."""

    def take(original: Any, scheduler: Any, received: Any, *args: Any, **kwargs: Any) -> Any:
        if POISON["receipt"] in received.input_ids:
            raise TypeError(SAID)
        return original(scheduler, received, *args, **kwargs)

    _around("sglang.srt.managers.scheduler", "Scheduler", "_handle_generate_request", take)


def everywhere() -> None:
    """All of them: each request fails where its token says."""
    for fail in (prefill, prefill_behind, decode, preparation, result, admission, receipt, two_together, always_together):
        fail()


def one_rank() -> None:
    """A prefill raises on the second rank alone, which waits five seconds for the first."""
    isolation: Any = importlib.import_module("sglang_gemma4.serving.isolation")
    isolation.SECONDS_TO_AGREE = 5.0
    parallel: Any = importlib.import_module("sglang.srt.runtime_context")
    _in_worker(
        lambda batch: _is_prefill(batch) and parallel.get_parallel().tp_rank == 1 and bool(_poisoned("prefill", batch.reqs)), behind=True
    )


def lost_device() -> None:
    """A prefill raises and the device refuses whatever comes after."""
    prefill()

    def refuse(_device: Any) -> None:
        raise RuntimeError("device-side assert triggered")

    isolation: Any = importlib.import_module("sglang_gemma4.serving.isolation")
    isolation.touch = refuse
