"""SGLang's decode and verify graphs on the CPU: ``TEST_INSTRUMENTS=rerun_decode:install``.

A CUDA graph replays kernels on the addresses it was captured with. Triton's interpreter launches nothing that could
be recorded, so a replay here runs the captured Python again, on the very tensors of the capture. Whatever it reads
that was not written since is as stale as on a GPU. The same holds for what SGLang derives from the batch before a
replay, where it no longer does. All else is SGLang's: its runner, sizes, buffers, padding.
"""

import contextlib
import importlib
from typing import Any

import torch
from torch.utils._pytree import tree_leaves


class Rerun:
    """Replaces ``FullCudaGraphBackend``."""

    def __init__(self, runner: Any) -> None:
        self.runner = runner
        self.captured: dict[Any, tuple[Any, Any, Any]] = {}

    def capture_session(self, stream: Any) -> Any:
        return contextlib.nullcontext()

    def replay_session(self) -> Any:
        return contextlib.nullcontext()

    def capture_one(self, shape_key: Any, forward_fn: Any, capture_inputs: Any = None, post_warmup_hook: Any = None) -> None:
        output = forward_fn()
        self.captured[shape_key] = forward_fn, output, self.runner.attn_backend.forward_metadata

    def can_run(self, forward_batch: Any, shape_key: Any) -> bool:
        return shape_key in self.captured

    def replay(self, shape_key: Any, static_forward_batch: Any, **_: Any) -> Any:
        forward, output, metadata = self.captured[shape_key]
        print(f"REPLAYED {shape_key.size}", flush=True)
        self.runner.attn_backend.forward_metadata = metadata  # a graph's kernels have its addresses
        for kept, fresh in zip(leaves(output), leaves(forward()), strict=True):
            kept.copy_(fresh)
        return output

    def cleanup(self) -> None:
        self.captured.clear()


def leaves(output: Any) -> list[torch.Tensor]:
    """The tensors of a ``LogitsProcessorOutput``."""
    return [each for each in tree_leaves(vars(output)) if isinstance(each, torch.Tensor)]


def install() -> None:
    """Have SGLang capture decode and verify steps on the CPU as it does on CUDA; the log gets a line for each replay."""
    setup: Any = importlib.import_module("sglang.srt.model_executor.model_runner_components.cuda_graph_setup")
    module: Any = importlib.import_module("sglang.srt.model_executor.runner.decode_cuda_graph_runner")
    recorded: Any = importlib.import_module("sglang_gemma4.attention.step_metadata")
    record = recorded.record

    def recording(*args: Any) -> None:
        print("RECORDED", flush=True)
        record(*args)

    recorded.record = recording

    def capture(*, model_runner: Any) -> Any:
        runner = module.DecodeCudaGraphRunner(model_runner)
        print(f"CAPTURED {runner.capture_bs}", flush=True)
        return setup.GraphCapture(runner=runner, memory_phase="decode", memory_usage_gb=0, capture_time=0)

    @contextlib.contextmanager
    def no_stream(stream: Any = None) -> Any:
        yield type("Context", (), {"stream": stream})

    setup.capture_decode_graph = capture
    module.graph_capture = no_stream
    module.get_or_create_global_graph_capture_stream = lambda: None
    module.resolve_decode_backend = Rerun
    mode: Any = importlib.import_module("sglang.srt.model_executor.forward_batch_info").ForwardMode
    mode.is_cpu_graph = mode.is_cuda_graph
    runner = module.DecodeCudaGraphRunner
    runner._record_in_graph_metadata_prep_done = runner.warmup = lambda self: None
    runner._publish_read_done = lambda self, in_graph: None


def stale() -> None:
    """As :func:`install`, and a replay's metadata are those of the capture."""
    install()
    recorded: Any = importlib.import_module("sglang_gemma4.attention.step_metadata")
    record, runs = recorded.record, [0]

    def once(*args: Any) -> None:
        if runs[0] < 2:  # one for each size
            runs[0] += 1
            record(*args)

    recorded.record = once
