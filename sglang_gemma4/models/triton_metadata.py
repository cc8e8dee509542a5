"""Derives the triton metadata of a decode or verify step in one launch inside its CUDA graph; chains need no mask."""

from collections.abc import Callable
from typing import Any

from sglang_gemma4.models.config_files import named_gemma4
from sglang_gemma4.patching import takes

OURS, CHAINS = "_sglang_gemma4_step_metadata", "_sglang_gemma4_verifies_chains"


RECORDED = "_sglang_gemma4_metadata_recorded"


def take(backend: Any, runner: Any) -> None:
    """Mark the backend of a Gemma 4 target or its assistant. One that verifies chains gets a small mask."""
    if not named_gemma4(runner.model_config.hf_config):
        return
    from sglang_gemma4.attention import step_metadata

    setattr(backend, OURS, True)
    setattr(backend, CHAINS, step_metadata.verifies_chains(backend, runner))
    if getattr(backend, CHAINS) and backend._verify_mask is None and str(backend.device).startswith("cuda"):
        # Without graphs SGLang would make a whole mask for each step, which is never read.
        backend._verify_mask = step_metadata.small_mask(runner.req_to_token_pool.size, backend.num_draft_tokens, backend.device)


def allocate(original: Callable[..., None], backend: Any, max_bs: int, max_num_tokens: int, *args: Any, **kwargs: Any) -> None:
    """Around ``init_cuda_graph_state``: no mask for chains, and slots for keys by request instead of by draft token."""
    if not getattr(backend, CHAINS, False):
        original(backend, max_bs, max_num_tokens, *args, **kwargs)
        return
    from sglang_gemma4.attention import step_metadata

    # SGLang's table has tokens * context slots, of which a step fills at most requests * context. A draft has no mask.
    context = backend.max_context_len
    backend.is_draft_runner, backend.max_context_len = True, -(-max_bs * context // max_num_tokens)
    try:
        original(backend, max_bs, max_num_tokens, *args, **kwargs)
    finally:
        backend.is_draft_runner, backend.max_context_len = False, context
    backend._verify_mask = step_metadata.small_mask(max_bs, backend.num_draft_tokens, backend.device)


def unmask(metadata: Any, backend: Any, _bs: int, forward_mode: Any, *_args: Any, **_kwargs: Any) -> None:
    """After ``_build_cuda_graph_forward_metadata``: remove the mask from metadata of a graph that verifies chains."""
    if getattr(backend, CHAINS, False) and forward_mode.is_target_verify():
        metadata.custom_mask = None


def unmask_eager(_result: None, backend: Any, forward_batch: Any) -> None:
    """After ``init_forward_metadata``: as :func:`unmask`, for a step outside graphs."""
    if getattr(backend, CHAINS, False) and forward_batch.forward_mode.is_target_verify():
        backend.forward_metadata.custom_mask = None


def decode_tables(original: Callable[..., Any], backend: Any, plan: Any, bs: int, seq_lens: Any, req_pool_indices: Any) -> Any:
    """Around ``_update_decode_kv_buffers``: derive a decode step's metadata in one launch."""
    if not getattr(backend, OURS, False):
        return original(backend, plan, bs, seq_lens, req_pool_indices)
    from sglang_gemma4.attention import step_metadata

    if not takes(step_metadata.NAME, step_metadata.reason_against(backend), "SGLang's launches derive the metadata"):
        return original(backend, plan, bs, seq_lens, req_pool_indices)
    return step_metadata.fill_decode(backend, bs, seq_lens, req_pool_indices)


def verify_tables(
    original: Callable[..., Any], backend: Any, plan: Any, bs: int, seq_lens: Any, spec_info: Any, req_pool_indices: Any
) -> Any:
    """Around ``_update_target_verify_buffers``, whose result is not used: derive the metadata in one launch."""
    if not getattr(backend, CHAINS, False):  # SGLang has to place a tree's mask
        return original(backend, plan, bs, seq_lens, spec_info, req_pool_indices)
    from sglang_gemma4.attention import step_metadata

    chain = step_metadata.without_mask(backend, spec_info)
    if not takes(step_metadata.NAME, step_metadata.reason_against(backend), "SGLang's launches derive the metadata"):
        return original(backend, plan, bs, seq_lens, chain, req_pool_indices)
    step_metadata.fill(backend, bs, seq_lens, req_pool_indices, chain.num_tokens_per_req)
    return None


def record(original: Callable[..., None], runner: Any, backend: Any, forward_batch: Any) -> None:
    """Around ``_run_in_graph_metadata_prep``: record the launch in the graph.

    It is called during the capture, with the tensors that the graph will be replayed with.
    """
    if getattr(backend, OURS, False) and (getattr(backend, CHAINS, False) or not forward_batch.forward_mode.is_target_verify()):
        from sglang_gemma4.attention import step_metadata

        if RECORDED not in vars(runner):
            setattr(runner, RECORDED, step_metadata.records(runner, backend, forward_batch))
        if getattr(runner, RECORDED):
            step_metadata.record(backend, forward_batch)
    original(runner, backend, forward_batch)


def replay(original: Callable[..., None], runner: Any, *args: Any, **kwargs: Any) -> None:
    """Around ``_init_replay_attn_metadata``: skip it if the graph derives its metadata."""
    if not getattr(runner, RECORDED, False):
        original(runner, *args, **kwargs)
