"""Prompts: their chunks, their graphs, and mixed batches."""

from collections.abc import Callable
from typing import Any

from sglang_gemma4.models.schedule import prefill_capture
from sglang_gemma4.patching import decline, is_on, tell


def capture(original: Callable[[Any], None], graphs: Any) -> None:
    """Around ``PrefillCudaGraphRunner.capture``: SGLang's graphs of the whole prefill, then ours."""
    if is_on("flash_in_graphs"):
        offer(graphs)  # before any capture, which asks for it
    if is_on("prefill_graph"):
        prefill_capture.capture_and_tell(original, graphs)  # its time and memory are those of SGLang's graphs alone
    else:
        original(graphs)
    if is_on("yoco_graph"):
        capture_short_part(graphs)
    if is_on("prefill_beside"):
        from sglang_gemma4.speculative import prefill_beside

        prefill_beside.capture_whole(graphs)  # last: without memory for these graphs, pieces do the same


def be_the_last(_result: Any, adder: Any, *_args: Any, **_kwargs: Any) -> None:
    """After ``PrefillAdder.add_one_req``: once a prompt was cut, the chunk has no budget left."""
    if adder.new_chunked_req is not None and adder.rem_chunk_tokens is not None:
        adder.rem_chunk_tokens = 0


NAME = "yoco_graph"


def capture_short_part(runner: Any) -> None:
    """Capture graphs of the layers that share KV, after a capture in which :mod:`models.fast_prefill_graph` saw a
    batch."""
    if type(runner.layer_model).__name__ != "Gemma4TextModel":
        return
    from time import perf_counter

    from sglang.srt.runtime_context import get_parallel

    from sglang_gemma4.models.schedule import fast_prefill_graph, short_graphs

    captured = fast_prefill_graph.take_captured(runner.layer_model)
    if captured is None:
        return  # YOCO is off, or has said why it is not for this model
    reason = short_graphs.reason_against(runner.model_runner.attn_backend, get_parallel().tp_size)
    if reason is not None:
        decline(NAME, f"the layers that share KV are launched one by one: {reason}")
        return
    began = perf_counter()
    try:
        sizes = short_graphs.capture(runner, captured).sizes
    except Exception as error:  # such as a full GPU memory: without these graphs all works as before
        decline(
            NAME, f"the layers that share KV are launched one by one: {type(error).__name__}: {(str(error).splitlines() or [''])[0][:160]}"
        )
        return
    took = perf_counter() - began
    tell(NAME, f"{len(sizes)} graphs of the layers that share KV took {took:.1f} s, for {', '.join(map(str, sizes))} requests")


def offer(graphs: Any) -> None:
    """Let graphs of whole mixed batches use FlashAttention-4."""
    from sglang_gemma4.models.schedule import whole_graphs

    vars(graphs)[whole_graphs.FLASH_OFFERED] = True
