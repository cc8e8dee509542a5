"""The shared layers' part of a prefill is replayed from CUDA graphs of up to 32 requests."""

from typing import Any

from sglang_gemma4.patching import Hook, Patch, decline, tell, uses

RUNNER = "sglang.srt.model_executor.runner.prefill_cuda_graph_runner.PrefillCudaGraphRunner"
NAME = "yoco_graph"


def capture_short_part(_result: None, runner: Any) -> None:
    """After ``PrefillCudaGraphRunner.capture``, in which :mod:`models.fast_prefill_graph` saw a batch."""
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
    except Exception as error:  # of a card whose memory is full, say: without these graphs all works as before
        decline(
            NAME, f"the layers that share KV are launched one by one: {type(error).__name__}: {(str(error).splitlines() or [''])[0][:160]}"
        )
        return
    took = perf_counter() - began
    tell(NAME, f"{len(sizes)} graphs of the layers that share KV took {took:.1f} s, for {', '.join(map(str, sizes))} requests")


PATCH = Patch(
    switch="SGLANG_GEMMA4_YOCO",
    why="20 of E2B's 35 layers and 18 of E4B's 42 see one row of a prompt, and Python launches their kernels one by one: a lone prompt of "
    "1,000 tokens waits 42 ms for E2B's first token, 30 for that of 26B-A4B, which has no such layers.",
    evidence="H200, E2B, median TTFT of a lone prompt with it, without, stock: 13, 39, 48 ms at 128 tokens (three passes), 14, 44, 57 at "
    "1,000 (two, two and three), runs/2026-11-23-e2b-first-token · 26B-A4B: runs/2026-11-23-26b-prefill · six graphs took 12.6 s, the "
    "decode graphs after them 11.7 s less; their memory was not measured",
    remove_when="SGLang captures prefills of models that share KV as one graph.",
    uses=(uses.shared_kv, uses.prefill_graphs, uses.any_batch),
    hooks=(Hook(f"{RUNNER}.capture", "after", capture_short_part, "85281b39b2ae"),),
)
