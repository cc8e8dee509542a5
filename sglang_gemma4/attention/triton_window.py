"""SGLang's Triton attention with Gemma 4's whole sliding window in decode."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sglang.srt.layers.attention.triton_backend import TritonAttnBackend


class Gemma4TritonAttnBackend(TritonAttnBackend):
    """``TritonAttnBackend`` whose decode reads ``sliding_window`` keys, not one less.

    Gemma 4 states its window inclusive of the query: query ``q`` sees keys ``q - window + 1 .. q``. SGLang carries
    ``window - 1``, the greatest distance. Prefill and verify take that many keys of the prefix and mask by distance,
    which is right. Decode clips the whole sequence, the query's own key included, to the same number and so loses the
    oldest key. That key is still in the sliding pool: SGLang frees keys further than ``window - 1`` behind the query
    (``free_swa_out_of_window_slots``).
    """

    sliding_window_size: int | None

    def init_forward_metadata(self, forward_batch: Any) -> None:
        """Eager metadata: all modes come here, only decode counts the query's own key."""
        if forward_batch.forward_mode.is_decode_or_idle():
            with self._window_counts_query():
                super().init_forward_metadata(forward_batch)
        else:
            super().init_forward_metadata(forward_batch)

    def init_cuda_graph_state(self, *args: Any, **kwargs: Any) -> None:
        """Graph buffers, sized ``max_num_tokens * window``; every mode shares them."""
        with self._window_counts_query():
            super().init_cuda_graph_state(*args, **kwargs)

    def _update_decode_kv_buffers(self, *args: Any, **kwargs: Any) -> Any:
        with self._window_counts_query():
            return super()._update_decode_kv_buffers(*args, **kwargs)

    @contextmanager
    def _window_counts_query(self) -> Iterator[None]:
        distance = self.sliding_window_size
        if distance is None or distance <= 0:
            yield
            return
        self.sliding_window_size = distance + 1
        try:
            yield
        finally:
            self.sliding_window_size = distance


# speculative/dflash_utils.py chooses by the backend class's name.
Gemma4TritonAttnBackend.__name__ = TritonAttnBackend.__name__
