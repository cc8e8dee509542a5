"""CUDA graphs of a whole mixed batch: prompts and running requests through all layers and attention in one launch.

Between the pieces of a breakable graph each layer's attention runs in Python twice, once for each part. That takes the
host longer than a small step takes the GPU (times of both, from two machines and the first without a kept file, in the
notes of ``runs/2026-11-25-26b-whole-graphs``). Here all that a layer reads is at fixed addresses
(:mod:`attention.fixed_kinds`), so nothing is left to Python. SGLang's prefill graph runner keeps the graphs with its
own, under a variant of their size. It computes embeddings and logits around them as around its own.
"""

from collections.abc import Callable
from typing import Any

import torch
from sglang.srt.model_executor.forward_context import ForwardContext, forward_context
from sglang.srt.model_executor.runner.shape_key import ShapeKey
from sglang.srt.runtime_context import get_parallel, get_schedule, get_spec

from sglang_gemma4.attention import fixed_flash, graph_metadata
from sglang_gemma4.attention.fixed_kinds import FixedKinds, Room
from sglang_gemma4.attention.two_kinds import Part
from sglang_gemma4.models.schedule import short_graphs
from sglang_gemma4.models.schedule.short_graphs import Replay
from sglang_gemma4.patching import decline, tell

VARIANT = "sglang-gemma4 joined"
GRAPHS = "_sglang_gemma4_whole_graphs"
FLASH_OFFERED = "_sglang_gemma4_flash_in_graphs"
"""Attribute of a prefill graph runner whose mixed batches may use FlashAttention-4 (patch ``flash_in_graphs``)."""
SMALLEST = 64
"""Fewest rows of a graph: a few prompt tokens and a few requests. SGLang pads to at most twice the rows."""
PROMPTS = 32
"""Most prompts of a forward; with more it runs in pieces."""
KEYS, PREFIX_KEYS = 4 << 20, 1 << 20
"""Most cached keys of running requests, and of prompts: 32 and 8 MiB of slots."""
SCORES = 16 << 20
"""Scores of a full layer's head beyond which prompts run in pieces, where FlashAttention-4 may compute them.

At 512 dimensions FlashAttention-4 takes 2.7 ms for 10^12 operations and our kernel 6.3
(``runs/2026-11-23-26b-prefill``). For 26B-A4B's five such layers that is 6 ms more at this limit, which is what the
pieces cost the host. A graph that has FlashAttention-4 saves that cost at any length. It is bounded only by its
capacity for cached keys (:data:`fixed_flash.PREFIX_KEYS`).
"""


class WholeGraphs:
    """The graphs of one ``PrefillCudaGraphRunner``.

    Args:
        graphs: the runner, whose own graphs are captured.
        room: the sizes that the graphs are captured for.
    """

    def __init__(self, graphs: Any, room: Room) -> None:
        runner = graphs.model_runner
        self.graphs = graphs
        self.sizes = tuple(size for size in graphs.capture_num_tokens if size >= SMALLEST)
        captured = graphs.capture_prepare(self.sizes[-1])[0]
        layers = [layer.self_attn.attn for layer in graphs.layer_model.layers]
        self.kinds = FixedKinds(runner.attn_backend, layers, self.sizes[-1], room, captured, runner.dtype)
        for layer in layers:
            if problem := self.kinds.reason_against(layer, runner.dtype):
                raise ValueError(problem)

    def capture(self, record: Callable[[Callable[[], torch.Tensor]], tuple[Replay, torch.Tensor]]) -> None:
        """Capture all sizes, the largest first; ``record`` as in :class:`short_graphs.ShortGraphs`."""
        forward = self.graphs.layer_model.forward
        for size in reversed(self.sizes):
            batch = self.graphs.capture_prepare(size)[0]
            self.kinds.size = size

            def run(batch: Any = batch) -> torch.Tensor:
                batch.residual_stream = None
                with forward_context(ForwardContext(attn_backend=self.kinds), forward_batch=batch):
                    found: torch.Tensor = forward(None, batch.positions, batch, input_embeds=batch.input_embeds)
                return found

            replay, hidden = record(run)
            backend, key = self.graphs.backend, self.key(size)
            backend._graphs[key], backend._outputs[key] = _Graph(replay), hidden

    def drop(self) -> None:
        """Free the memory of what was captured."""
        for size in self.sizes:
            for kept in (self.graphs.backend._graphs, self.graphs.backend._outputs):
                kept.pop(self.key(size), None)

    def key(self, size: int) -> ShapeKey:
        """The key under which SGLang's runner keeps the graph of ``size`` rows."""
        return ShapeKey(size=size, variant_label=VARIANT)

    def reason_against(self, prompts: Part, running: Part) -> str | None:
        """Why these parts, whose metadata are prepared, run in pieces; or None."""
        rows, batch = prompts.rows + running.rows, prompts.batch
        if not self.sizes[0] // 2 <= rows <= self.sizes[-1]:
            return f"fewer than {self.sizes[0] // 2} rows"
        if batch.contains_mm_inputs():
            return "a prompt has images, video or audio"
        size = next(size for size in self.sizes if size >= rows)
        if long_prompts(batch) and self.kinds.flashes(size) is None:
            return "long prompts, for FlashAttention-4"
        return self.kinds.fits(prompts, running, size)


def long_prompts(batch: Any) -> bool:
    """Whether a prefill's attention takes long (:data:`SCORES`).

    The time of such a step does not predict that of another with as many rows.
    """
    pairs = zip(batch.extend_prefix_lens_cpu, batch.extend_seq_lens_cpu, strict=True)
    return bool(sum(new * (prefix + new // 2) for prefix, new in pairs) > SCORES)


class _Graph:
    """What SGLang's backend keeps for a graph: an object with ``replay``."""

    def __init__(self, replay: Replay) -> None:
        self.replay = replay


def of(graphs: Any) -> WholeGraphs | None:
    """The whole graphs of a ``PrefillCudaGraphRunner``, if it has some."""
    found: WholeGraphs | None = vars(graphs).get(GRAPHS)
    return found


def reason_against(graphs: Any) -> str | None:
    """Why mixed batches of this runner run in pieces, or None."""
    runner, model = graphs.model_runner, graphs.layer_model
    if type(model).__name__ != "Gemma4TextModel":
        return f"the model is a {type(model).__name__}"
    if getattr(model.config, "num_kv_shared_layers", None):
        return "layers share keys and values, and see the rows that are read alone"
    if get_parallel().tp_size > 1:
        return f"--tp-size {get_parallel().tp_size}: not tried on several ranks"
    if graphs.capture_num_tokens[-1] < SMALLEST:
        return f"the largest prefill graph has {graphs.capture_num_tokens[-1]} tokens, fewer than {SMALLEST}"
    if not graphs.buffer_registry.has_slot("input_embeds"):
        return "the prefill graphs take no embeddings"
    # Metadata are prepared before a replay and copied into the graphs' tensors: in a unified pool these hold translated slots, too.
    return graph_metadata.reason_against_backend(runner.attn_backend)


def room_of(graphs: Any) -> Room:
    """The largest mixed batch of this server for which whole graphs are captured."""
    runner, spec = graphs.model_runner, graphs.model_runner.spec_algorithm
    drafts = 1 if spec.is_none() else int(get_spec().speculative_num_draft_tokens)
    running = get_schedule().max_running_requests or runner.req_to_token_pool.size
    running = min(running, runner.req_to_token_pool.size, graphs.capture_num_tokens[-1] // drafts)
    context = runner.model_config.context_len
    return Room(
        running=running,
        each=drafts,
        prompts=min(PROMPTS, runner.req_to_token_pool.size),
        keys=min(running * context, KEYS),
        prefix_keys=min(PROMPTS * context, PREFIX_KEYS),
        window=(runner.attn_backend.sliding_window_size or 0) + 1,  # a decode step counts the query's own
        verify=not spec.is_none(),
    )


def capture(graphs: Any) -> WholeGraphs:
    """Capture all sizes of a ``PrefillCudaGraphRunner`` for which :func:`reason_against` is None.

    Raises:
        ValueError: a layer that the kernels do not compute.
    """
    whole = WholeGraphs(graphs, room_of(graphs))
    offered = vars(graphs).get(FLASH_OFFERED, False)
    problem = _record_with_flash(whole) if offered else "it is off"
    if problem is not None:
        whole.kinds.flash = None
        if offered:
            decline(fixed_flash.NAME, f"our kernel computes the prompts' full layers in graphs: {problem}")
        _record(whole)
    vars(graphs)[GRAPHS] = whole
    return whole


def _record(whole: WholeGraphs) -> None:
    try:
        with torch.no_grad(), whole.graphs.model_context(), short_graphs.capture_session() as record:
            whole.capture(record)
    except BaseException:
        whole.drop()  # free what was captured before memory ran out
        raise


def _record_with_flash(whole: WholeGraphs) -> str | None:
    """As :func:`_record`, with FlashAttention-4 for the layers and sizes that it takes.

    Returns None, or why not, with nothing captured.
    """
    try:
        problem = whole.kinds.take(fixed_flash.flash_of(whole.graphs.model_runner.attn_backend))
        if problem is None:
            _record(whole)
    except Exception as error:  # from a compiler, a driver or a full GPU: our kernel is the fallback
        return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:160]}"
    if problem is None and (flash := whole.kinds.flash) is not None:
        held = (flash.keys.nbytes + flash.values.nbytes) / 2**20
        least = next(size for size in whole.sizes if size >= flash.least)
        tell(
            fixed_flash.NAME,
            f"FlashAttention-4 computes the prompts' full layers in graphs of {least} rows and more, behind up to {flash.prefix_keys} "
            f"cached keys; their buffers hold {held:.0f} MiB",
        )
    return problem
