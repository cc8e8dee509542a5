"""Waits for KV that a prefill loads back from the host (HiCache), in a mixed batch.

HiCache's copies run layer by layer on their own stream. When a forward's batch begins, SGLang names the copy that the
forward waits for (``set_hicache_consumer``, managers/tp_worker.py). A reader of a layer's keys waits for that layer
(``_wait_for_layer`` of the pool). A mixed batch runs inside the running requests' step, which names no copy or one that
ended long ago. So it names the prefill's copy meanwhile.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def pending(batch: Any) -> bool:
    """Whether keys of this ``ScheduleBatch``, a prefill, are still copied from the host; its time includes the copy."""
    return bool(batch.hicache_consumer_index >= 0)


@contextmanager
def waited_for(pool: Any, load: int) -> Iterator[None]:
    """Inside, reads of ``pool`` wait for HiCache's copy ``load``, layer by layer; the previous one is restored on exit.

    Args:
        pool: the ``KVCache`` of a ``ModelRunner``.
        load: ``hicache_consumer_index`` of the prefill; -1 for none.
    """
    counter = pool.layer_transfer_counter
    if counter is None:
        yield
        return
    before = counter.consumer_index
    counter.set_consumer(load)
    try:
        yield
    finally:
        counter.set_consumer(before)


def wait_for_all(pool: Any) -> None:
    """Make the current stream wait for all layers of the copy, before a graph that reads keys itself.

    SGLang does the same before its full graphs (``PrefillCudaGraphRunner._wait_for_layer_loads``).
    """
    counter = pool.layer_transfer_counter
    if counter is not None and counter.consumer_index >= 0:
        counter.wait_until(counter.num_layers - 1)
