"""The synchronous scheduler loop (``--disable-overlap-schedule``) driving an MTP worker."""

from collections.abc import Callable
from typing import Any


class PipelineParallelError(RuntimeError):
    """Frozen-KV MTP was asked to run as a pipeline stage."""


def refuse_pipeline_inputs(pp_proxy_tensors: Any) -> None:
    """Accept the ``pp_proxy_tensors=None`` of a single pipeline stage only.

    Raises:
        PipelineParallelError: there are tensors of a previous stage, which the frozen-KV worker would ignore.
    """
    if pp_proxy_tensors is not None:
        raise PipelineParallelError(
            "Frozen-KV MTP cannot run with pipeline parallelism: its worker takes no input from a previous stage. "
            "Use --pp-size 1, or leave out --speculative-algorithm."
        )


def take_pipeline_argument(
    original: Callable[..., Any], worker: Any, batch: Any, *args: Any, pp_proxy_tensors: Any = None, **kwargs: Any
) -> Any:
    """Around ``FrozenKVMTPWorkerV2.forward_batch_generation``: accept the argument that the synchronous loop always passes."""
    refuse_pipeline_inputs(pp_proxy_tensors)
    return original(worker, batch, *args, **kwargs)
