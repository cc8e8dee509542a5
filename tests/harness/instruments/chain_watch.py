"""Launches of ``accept_chain`` in an engine: ``TEST_INSTRUMENTS`` names ``install``, which prints a line for each.

SGLang checks whether a verify step's tokens are on a GPU before it commits what was accepted by one launch. Our
tokens claim to be, so that a CPU engine takes the same path. Another line says that the step's result has the lengths
of the launch, and one that the relay skips what the launch wrote.
"""

import importlib
from typing import Any

import torch

LAUNCHED, COMMITTED, RELAYED = "CHAIN accepted of", "CHAIN committed", "CHAIN relayed"


class OnACard(torch.Tensor):
    """A tensor that claims to be on a GPU; results of operations on it do not."""

    is_cuda = True  # type: ignore[assignment]
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]


def install() -> None:
    ours: Any = importlib.import_module("sglang_gemma4.speculative.chain_acceptance")
    worker: Any = importlib.import_module("sglang.srt.speculative.eagle_worker_v2").EAGLEWorkerV2
    future_map: Any = importlib.import_module("sglang.srt.managers.overlap_utils").FutureMap
    launch, verify, publish = ours.accept_chain, worker.verify, future_map.publish
    latest: list[Any] = []

    def launched(drafted: torch.Tensor, *args: Any) -> Any:
        found = launch(drafted, *args)
        latest[:] = [found.new_lengths]
        print(LAUNCHED, found.lengths.numel(), flush=True)
        return found._replace(predict=found.predict.as_subclass(OnACard))

    def verified(*args: Any, **named: Any) -> Any:
        result = verify(*args, **named)
        if latest and result.new_seq_lens is latest[0]:
            print(COMMITTED, flush=True)
        return result

    def published(self: Any, indices: Any, lengths: Any, *args: Any) -> None:
        if self._relay is not None and self._relay.published_seq_lens is lengths:
            print(RELAYED, flush=True)
        publish(self, indices, lengths, *args)

    ours.accept_chain, worker.verify, future_map.publish = launched, verified, published
