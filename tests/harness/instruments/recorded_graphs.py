"""SGLang's breakable prefill graphs on the CPU: ``TEST_INSTRUMENTS=recorded_graphs:install``.

A CUDA graph replays kernels on the addresses it was captured with and runs no Python. Here each piece between two
attentions records the torch operators of its capture instead and replays these on the very same tensors. So whatever
a replay reads that was not written since the capture is as stale as on a GPU. All else is SGLang's: its runner, its
buckets and buffers, its pieces around an eager attention.
"""

import contextlib
import contextvars
import functools
import importlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

rerunning_graphs: list[int] = []
"""Rows of the graph whose Python is being run again; on a GPU no Python would run."""
UNINITIALISED = {torch.ops.aten.empty.memory_format, torch.ops.aten.empty_like.default, torch.ops.aten.new_empty.default}


class Piece(TorchDispatchMode):
    """One captured piece: operators, their arguments and the tensors they gave at the capture."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func not in UNINITIALISED:
            self.calls.append((func, args, kwargs or {}, result))
        return result

    def replay(self) -> None:
        for func, args, kwargs, result in self.calls:
            for kept, fresh in zip(tree_leaves(result), tree_leaves(func(*args, **kwargs)), strict=True):
                if isinstance(kept, torch.Tensor) and kept.data_ptr() != fresh.data_ptr():
                    kept.copy_(fresh)


class RecordedCapture:
    """Replaces ``BreakableCUDAGraphCapture``."""

    _barrier_fn = None

    def __init__(self, cuda_graph: Any, **_: Any) -> None:
        self.cuda_graph = cuda_graph
        self.piece: Piece | None = None

    def __enter__(self) -> "RecordedCapture":
        from sglang.srt.model_executor.runner_backend_utils.breakable_cuda_graph import breakable_cuda_graph

        self.token = breakable_cuda_graph._current_capture_var.set(self)
        self._begin_new_segment()
        return self

    def __exit__(self, *_: Any) -> None:
        from sglang.srt.model_executor.runner_backend_utils.breakable_cuda_graph import breakable_cuda_graph

        self._end_current_segment()
        breakable_cuda_graph._current_capture_var.reset(self.token)

    def _begin_new_segment(self) -> None:
        self.piece = Piece()
        self.piece.__enter__()

    def _end_current_segment(self) -> None:
        assert self.piece is not None
        self.piece.__exit__(None, None, None)
        self.cuda_graph._segments.append(self.piece)


@contextlib.contextmanager
def no_stream(stream: Any = None) -> Iterator[Any]:
    """Replaces ``graph_capture``."""
    yield type("Context", (), {"stream": stream})


def install() -> None:
    """Have SGLang capture prefills on the CPU as it does on CUDA; the log gets a line for each replay."""
    from sglang.srt.model_executor import cuda_graph_config
    from sglang.srt.model_executor.runner import prefill_cuda_graph_runner as runner
    from sglang.srt.model_executor.runner_backend import breakable_cuda_graph_backend as backend
    from sglang.srt.model_executor.runner_backend_utils import breakable_cuda_graph
    from sglang.srt.models import gemma4_causal

    changed: Any = cuda_graph_config
    changed.default_prefill_backend = lambda: cuda_graph_config.Backend.BREAKABLE
    changed = runner
    changed.graph_capture = no_stream
    changed.get_or_create_global_graph_capture_stream = lambda: None
    # SGLang's experts without a GPU loop over those with tokens; a card's do not look.
    changed = gemma4_causal.Gemma4MoE
    changed.forward = breakable_cuda_graph.eager_on_graph(changed.forward)
    changed = backend
    changed.BreakableCUDAGraphCapture = RecordedCapture
    changed.get_or_create_global_graph_memory_pool = lambda _: (0, 0)
    changed.set_graph_pool_id = lambda _: None
    owner: Any = backend.BreakableCudaGraphBackend
    owner.deduped_cuda_graph = None
    owner.begin_cuda_graph_capture = owner.end_cuda_graph_capture = lambda _: None
    original = owner.replay

    @functools.wraps(original)
    def announced(self: Any, shape_key: Any, batch: Any, **kwargs: Any) -> Any:
        print(f"REPLAYED {shape_key.size} for {batch.global_num_token_non_padded_cpu}", flush=True)
        return original(self, shape_key, batch, **kwargs)

    owner.replay = announced


def counting() -> None:
    """As :func:`install`, with the lines of ``row_counter``."""
    from tests.harness.instruments import row_counter

    install()
    row_counter.install()


def rerunning() -> None:
    """As :func:`counting`, with graphs of the short part whose replay runs their Python again, on the tensors of the capture.

    Triton's interpreter launches no operator that could be recorded.
    """
    counting()
    _rerun()


def whole() -> None:
    """As :func:`install`, with graphs of whole mixed batches whose replay runs their Python again, in an engine that
    may overlap."""
    importlib.import_module("tests.harness.instruments.beside_trace").overlapped()
    install()
    _rerun()


def _rerun() -> None:
    from sglang.srt.model_executor.runner_backend_utils.breakable_cuda_graph import context

    from sglang_gemma4.models.schedule import short_graphs

    flags: Any = context

    def record(run: Any) -> Any:
        result, scope = run(), contextvars.copy_context()

        def replay() -> None:
            print(f"RERUN {len(result)}", flush=True)
            inside, flags._in_breakable_cuda_graph = flags._in_breakable_cuda_graph, False  # as at the capture
            rerunning_graphs.append(len(result))
            result.copy_(scope.copy().run(run))
            rerunning_graphs.pop()
            flags._in_breakable_cuda_graph = inside

        return replay, result

    changed: Any = short_graphs
    changed.capture_session = lambda: contextlib.nullcontext(record)


def saving() -> None:
    """As :func:`install`, with a memory saver that is enabled and saves nothing; the real one needs a GPU."""
    from sglang.srt.utils import torch_memory_saver_adapter as saver

    install()

    class Enabled(saver._TorchMemorySaverAdapterNoop):
        enabled = True

    adapter: Any = saver.TorchMemorySaverAdapter
    adapter.create = staticmethod(lambda enable: Enabled() if enable else saver._TorchMemorySaverAdapterNoop())


def forgetful() -> None:
    """As :func:`install`, and a replay reads the per-layer embeddings of whatever was there before, as stock's would."""
    from sglang_gemma4.models.schedule import prefill_graph

    install()
    owner: Any = prefill_graph.GraphInputs
    owner.fill = lambda self, _: None
