"""KV that a prefill reads back from the host (HiCache), in a forward that it shares with other requests.

HiCache's copies run layer by layer on a stream of their own. SGLang names the copy that a forward waits for as the forward's batch begins
(``set_hicache_consumer``, managers/tp_worker.py), and who reads a layer's keys waits for that layer (``_wait_for_layer`` of the pool). A
joined forward runs inside the running requests' step, which names none or one that has long ended, so it names the prefill's meanwhile.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def pending(batch: Any) -> bool:
    """Whether keys of this ``ScheduleBatch``, a prefill, are on their way from the host: its time is then also that of their copy."""
    return bool(batch.hicache_consumer_index >= 0)


@contextmanager
def waited_for(pool: Any, load: int) -> Iterator[None]:
    """Meanwhile who reads a layer's keys in ``pool`` waits until copy ``load`` has brought them; afterwards for what he waited before.

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
    """Have the current stream wait for all layers of the copy: before a graph that reads keys itself, as SGLang's full graphs do
    (``PrefillCudaGraphRunner._wait_for_layer_loads``)."""
    counter = pool.layer_transfer_counter
    if counter is not None and counter.consumer_index >= 0:
        counter.wait_until(counter.num_layers - 1)
