"""CUDA graphs of a prefill's short part: the layers that share KV, over one row of each request.

Those layers launch as many kernels for one row as for thousands, and the launches take the host longer than a short
prompt takes the GPU. The short part is a decode step of these layers, so it is captured as one, with its attention
metadata. The metadata follow from lengths and request rows at fixed addresses, as the draft's do
(``attention/graph_metadata.py``). Inside a replayed prefill the graph is replayed between two pieces. It has its own
memory pool, since that prefill's tensors are alive meanwhile.
"""

import contextlib
import copy
from collections.abc import Callable
from typing import Any

import torch
from sglang.srt.layers.layer_boundary.residual import batch as residual_batch
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.model_executor.forward_context import ForwardContext, forward_context

from sglang_gemma4.attention import second_metadata
from sglang_gemma4.models.schedule.read_rows import first_shared

ROWS = (1, 2, 4, 8, 16, 32)
"""Rows of the graphs, up to the server's running requests. With more, a prefill takes the GPU longer than the host."""
GRAPHS = "_sglang_gemma4_short_part_graphs"
Replay = Callable[[], object]


def layers_of_rows(model: Any, hidden_states: torch.Tensor, per_layer_rows: torch.Tensor | None, short: Any) -> torch.Tensor:
    """The layers that share KV and the last norm, over rows: ``[rows, hidden]``.

    Args:
        hidden_states: ``[rows, hidden]``.
        per_layer_rows: ``[rows, sharing layers, per-layer width]`` or None.
        short: the ``ForwardBatch`` of these rows, whose attention metadata the current backend has.
    """
    first = first_shared(model)
    residual_batch.set_written(hidden_states, short)
    for number in range(first, model.config.num_hidden_layers):
        hidden_states = model.layers[number](
            positions=short.positions,
            hidden_states=hidden_states,
            per_layer_input=None if per_layer_rows is None else per_layer_rows[:, number - first],
            forward_batch=short,
        )
    normed: torch.Tensor = residual_batch.final_norm(hidden_states, short, model.norm)
    return normed


class ShortGraphs:
    """The graphs of one model, and the tensors that they read.

    Args:
        model: a ``Gemma4TextModel`` whose last layers share KV.
        backend: its attention backend, for which :func:`reason_against` is None.
        captured: a batch that a prefill graph of the model was captured with; fields that do not depend on the rows
        are taken from it.
        bind: SGLang's ``kv_index_translator.bind_runner_slots``.
    """

    def __init__(self, model: Any, backend: Any, captured: Any, bind: Callable[[Any], None]) -> None:
        most = min(ROWS[-1], backend.kv_indptr.numel() - 1)  # a backend's tables have a row for each running request
        shared = model.config.num_hidden_layers - first_shared(model)
        self.model, self.captured, self.bind = model, captured, bind
        self.sizes: tuple[int, ...] = tuple(sorted({*(rows for rows in ROWS if rows < most), most}))

        def zeros(*shape: int, like: torch.Tensor | None = None) -> torch.Tensor:
            return torch.zeros(most, *shape, dtype=model.dtype() if like is None else like.dtype, device=captured.seq_lens.device)

        self.hidden = zeros(model.config.hidden_size)
        has_per_layer = model.embed_tokens_per_layer is not None
        self.per_layer = zeros(shared, model.hidden_size_per_layer_input) if has_per_layer else None
        self.positions, self.slots = zeros(like=captured.positions), zeros(like=captured.out_cache_loc)
        self.requests, self.lengths = zeros(like=captured.req_pool_indices), zeros(like=captured.seq_lens) + 1
        self.backend = second_metadata.for_graphs(backend, most)
        self.graphs: dict[int, tuple[Replay, torch.Tensor]] = {}

    def capture(self, record: Callable[[Callable[[], torch.Tensor]], tuple[Replay, torch.Tensor]]) -> None:
        """Capture all sizes; ``record`` captures the function it is given, and returns a replay and its result."""
        for rows in reversed(self.sizes):
            short = self.batch_of(rows)

            def run(rows: int = rows, short: Any = short) -> torch.Tensor:
                per_layer = None if self.per_layer is None else self.per_layer[:rows]
                with forward_context(ForwardContext(attn_backend=self.backend), forward_batch=short):
                    self.backend.init_forward_metadata_out_graph(short, in_capture=True)
                    return layers_of_rows(self.model, self.hidden[:rows], per_layer, short)

            self.graphs[rows] = record(run)

    def batch_of(self, rows: int) -> Any:
        """A decode step of ``rows`` requests over the graphs' tensors. Its layers write no KV, and slots are unused."""
        short = copy.copy(self.captured)
        for name in vars(short):
            if name.startswith("extend_") or name in ("mm_inputs", "mm_input_embeds", "input_ids", "spec_info", "residual_stream"):
                setattr(short, name, None)
        short.forward_mode = short.global_forward_mode = ForwardMode.DECODE
        short.batch_size = short.seq_lens_sum = short.global_num_token_non_padded_cpu = rows
        short.req_pool_indices, short.seq_lens = self.requests[:rows], self.lengths[:rows]
        short.orig_seq_lens, short.seq_lens_cpu = short.seq_lens, torch.ones(rows, dtype=torch.int64)
        short.positions, short.out_cache_loc = self.positions[:rows], self.slots[:rows]
        short.num_token_non_padded = short.kv_loc_cols = short.kv_loc_plan = short.out_cache_loc_virtual = None
        short.forward_metadata_ready = short.return_logprob = short.full_prefill_cuda_graph_capture = False
        self.bind(short)
        return short

    def load(self, requests: torch.Tensor, lengths: torch.Tensor) -> None:
        """Set the requests of the next :meth:`fill`: rows in SGLang's request table, and tokens in the pool."""
        rows = requests.shape[0]
        padded = self.padded(rows)
        self.requests[:rows].copy_(requests)
        self.lengths[:rows].copy_(lengths)
        self.requests[rows:padded].zero_()
        self.lengths[rows:padded].fill_(1)

    def padded(self, rows: int) -> int:
        """Rows of the smallest graph with at least ``rows`` rows."""
        return next(size for size in self.sizes if size >= rows)

    def fill(
        self,
        rows: torch.Tensor,
        hidden_states: torch.Tensor,
        per_layer_inputs: torch.Tensor | None,
        positions: torch.Tensor,
        out: torch.Tensor,
    ) -> None:
        """As ``fast_prefill.fill_rows``, for the requests that were loaded."""
        count = rows.shape[0]
        torch.index_select(hidden_states, 0, rows, out=self.hidden[:count])
        torch.index_select(positions, 0, rows, out=self.positions[:count])
        if self.per_layer is not None and per_layer_inputs is not None:
            torch.index_select(per_layer_inputs[:, first_shared(self.model) :], 0, rows, out=self.per_layer[:count])
        replay, result = self.graphs[self.padded(count)]
        replay()
        out.index_copy_(0, rows, result[:count])


def of(model: Any, rows: int) -> ShortGraphs | None:
    """The model's graphs, if one of them has at least ``rows`` rows; else None."""
    graphs: ShortGraphs | None = model.__dict__.get(GRAPHS)
    return graphs if graphs is not None and 0 < rows <= graphs.sizes[-1] else None


def reason_against(backend: Any, ranks: int) -> str | None:
    """Why this process launches the short part kernel by kernel, or None."""
    from sglang_gemma4.attention import graph_metadata

    if ranks > 1:
        return f"--tp-size {ranks}: not tried on several ranks"
    return graph_metadata.reason_against_metadata(backend)


def capture(runner: Any, captured: Any) -> ShortGraphs:
    """Capture all sizes for the model of a ``PrefillCudaGraphRunner``; ``captured`` as in :class:`ShortGraphs`."""
    model, owner = runner.layer_model, runner.model_runner
    graphs = ShortGraphs(model, owner.attn_backend, captured, owner.kv_index_translator.bind_runner_slots)
    with torch.no_grad(), runner.model_context(), capture_session() as record:
        graphs.capture(record)
    model.__dict__[GRAPHS] = graphs
    return graphs


@contextlib.contextmanager
def capture_session() -> Any:
    """Yields ``record`` for :meth:`ShortGraphs.capture`: CUDA graphs that share a memory pool."""
    from sglang.srt.distributed.parallel_state import graph_capture
    from sglang.srt.model_executor.runner_utils.capture_mode import model_capture_mode

    pool = torch.cuda.graph_pool_handle()

    with model_capture_mode(), graph_capture() as context:

        def record(run: Callable[[], torch.Tensor]) -> tuple[Replay, torch.Tensor]:
            for _ in range(2):  # kernels are compiled and loaded before the capture
                run()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool, stream=context.stream):
                result = run()
            return graph.replay, result

        yield record
