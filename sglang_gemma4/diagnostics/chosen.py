"""What a server chose for this model, GPU and flags (attention, draft, graphs, pools), as a few lines of its banner."""

from typing import Any

from sglang_gemma4.patching import this_server, uses


def lines(scheduler: Any) -> list[str]:
    """The banner's lines about a ``Scheduler`` that is ready; call it in the scheduler's process."""
    try:
        server = this_server.of_this_process()
        return [] if server is None else [_model(server), _pools(scheduler), _draft(server)]
    except Exception as error:  # a banner must not end a server
        return [f"what was chosen is not known: {type(error).__name__}: {error}"]


def _model(server: this_server.Server) -> str:
    given = server.arguments
    attention = server.prefill_backend if server.prefill_backend == server.decode_backend else None
    attention = attention or f"{server.prefill_backend} (prefill), {server.decode_backend} (decode)"
    graphs = " and ".join(phase for phase in ("prefill", "decode") if uses.graphs_of(server, phase))
    return f"model: {server.architecture} on {given.device}, attention {attention}, CUDA graphs for {graphs or 'nothing'}"


def _pools(scheduler: Any) -> str:
    full, sliding = (getattr(scheduler, name, None) for name in ("full_tokens_per_layer", "swa_tokens_per_layer"))
    if full is None or sliding is None:
        return f"KV pool: {scheduler.max_total_num_tokens:,} tokens, {scheduler.max_running_requests} requests at once"
    return f"KV pools: {full:,} tokens of full attention, {sliding:,} of sliding, {scheduler.max_running_requests} requests at once"


def _draft(server: this_server.Server) -> str:
    given = server.arguments
    if not given.speculative_algorithm:
        return "draft: none (--speculative-draft-model-path auto takes the -assistant beside the model)"
    length = "adaptive" if given.speculative_adaptive else f"{given.speculative_num_steps} steps, topk {given.speculative_eagle_topk}"
    return f"draft: {given.speculative_draft_model_path} by {given.speculative_algorithm}, {length}"
