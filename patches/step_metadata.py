"""A decode or verify step on triton derives its metadata in one launch inside its CUDA graph; chains need no mask."""

from collections.abc import Callable
from typing import Any

from sglang_gemma4.models.config_files import named_gemma4
from sglang_gemma4.patching import Hook, Patch, takes, uses

BACKEND = "sglang.srt.layers.attention.triton_backend.TritonAttnBackend"
RUNNER = "sglang.srt.model_executor.runner.decode_cuda_graph_runner.DecodeCudaGraphRunner"
OURS, CHAINS = "_sglang_gemma4_step_metadata", "_sglang_gemma4_verifies_chains"
RECORDED = "_sglang_gemma4_metadata_recorded"


def take(_result: None, backend: Any, runner: Any, *_args: Any, **_kwargs: Any) -> None:
    """After ``TritonAttnBackend.__init__``: a Gemma 4 target or its assistant."""
    if not named_gemma4(runner.model_config.hf_config):
        return
    from sglang_gemma4.attention import step_metadata

    setattr(backend, OURS, True)
    setattr(backend, CHAINS, step_metadata.verifies_chains(backend, runner))
    if getattr(backend, CHAINS) and backend._verify_mask is None and str(backend.device).startswith("cuda"):
        # Without graphs SGLang would make a whole mask for each step, which nobody reads.
        backend._verify_mask = step_metadata.small_mask(runner.req_to_token_pool.size, backend.num_draft_tokens, backend.device)


def allocate(original: Callable[..., None], backend: Any, max_bs: int, max_num_tokens: int, *args: Any, **kwargs: Any) -> None:
    """Around ``init_cuda_graph_state``: without a chain's mask, and with slots for each request's keys once, not for each draft token."""
    if not getattr(backend, CHAINS, False):
        original(backend, max_bs, max_num_tokens, *args, **kwargs)
        return
    from sglang_gemma4.attention import step_metadata

    # SGLang's table has tokens times context slots, of which a step fills no more than requests times context; and a draft has no mask.
    context = backend.max_context_len
    backend.is_draft_runner, backend.max_context_len = True, -(-max_bs * context // max_num_tokens)
    try:
        original(backend, max_bs, max_num_tokens, *args, **kwargs)
    finally:
        backend.is_draft_runner, backend.max_context_len = False, context
    backend._verify_mask = step_metadata.small_mask(max_bs, backend.num_draft_tokens, backend.device)


def unmask(metadata: Any, backend: Any, _bs: int, forward_mode: Any, *_args: Any, **_kwargs: Any) -> None:
    """After ``_build_cuda_graph_forward_metadata``: what a graph reads."""
    if getattr(backend, CHAINS, False) and forward_mode.is_target_verify():
        metadata.custom_mask = None


def unmask_eager(_result: None, backend: Any, forward_batch: Any) -> None:
    """After ``init_forward_metadata``: a step outside graphs."""
    if getattr(backend, CHAINS, False) and forward_batch.forward_mode.is_target_verify():
        backend.forward_metadata.custom_mask = None


def decode_tables(original: Callable[..., Any], backend: Any, plan: Any, bs: int, seq_lens: Any, req_pool_indices: Any) -> Any:
    """Around ``_update_decode_kv_buffers``."""
    if not getattr(backend, OURS, False):
        return original(backend, plan, bs, seq_lens, req_pool_indices)
    from sglang_gemma4.attention import step_metadata

    if not takes(step_metadata.NAME, step_metadata.reason_against(backend), "SGLang's launches derive the metadata"):
        return original(backend, plan, bs, seq_lens, req_pool_indices)
    return step_metadata.fill_decode(backend, bs, seq_lens, req_pool_indices)


def verify_tables(
    original: Callable[..., Any], backend: Any, plan: Any, bs: int, seq_lens: Any, spec_info: Any, req_pool_indices: Any
) -> Any:
    """Around ``_update_target_verify_buffers``, whose result nobody reads."""
    if not getattr(backend, CHAINS, False):  # a tree's mask is SGLang's to place
        return original(backend, plan, bs, seq_lens, spec_info, req_pool_indices)
    from sglang_gemma4.attention import step_metadata

    chain = step_metadata.without_mask(backend, spec_info)
    if not takes(step_metadata.NAME, step_metadata.reason_against(backend), "SGLang's launches derive the metadata"):
        return original(backend, plan, bs, seq_lens, chain, req_pool_indices)
    step_metadata.fill(backend, bs, seq_lens, req_pool_indices, chain.num_tokens_per_req)
    return None


def record(original: Callable[..., None], runner: Any, backend: Any, forward_batch: Any) -> None:
    """Around ``_run_in_graph_metadata_prep``, which is called while a graph is captured, on the tensors it will be replayed with."""
    if getattr(backend, OURS, False) and (getattr(backend, CHAINS, False) or not forward_batch.forward_mode.is_target_verify()):
        from sglang_gemma4.attention import step_metadata

        if RECORDED not in vars(runner):
            setattr(runner, RECORDED, step_metadata.records(runner, backend, forward_batch))
        if getattr(runner, RECORDED):
            step_metadata.record(backend, forward_batch)
    original(runner, backend, forward_batch)


def replay(original: Callable[..., None], runner: Any, *args: Any, **kwargs: Any) -> None:
    """Around ``_init_replay_attn_metadata``: the graph does it."""
    if not getattr(runner, RECORDED, False):
        original(runner, *args, **kwargs)


PATCH = Patch(
    switch="SGLANG_GEMMA4_ATTENTION",
    why="Before each replay SGLang derives a step's metadata by some twenty launches, and fills and copies a mask that a chain does not "
    "need: a byte for each draft token and key of the largest batch. Its table of slots has room for the keys of each draft token, which "
    "are one request's: with the mask 0.9 GiB too much for 128 requests of 4 tokens in a context of 262,144.",
    evidence="srt/layers/attention/triton_backend.py:515-653 · verify_mask.py:57-80 · model_executor/runner/decode_cuda_graph_runner.py:"
    "1784-1812 · tests/interpreted/test_step_metadata.py (the same tables as SGLang's), tests/engine/test_recorded_metadata.py · H200, "
    "MTP, without it beside: 26B-A4B in fp8 4.12 ms a step for 5.48 at batch 1, 8.61 for 8.71 at 8, 12.04 for 12.14 at 32, 80 as before; "
    "E2B 3.51 for 3.89, 3.79 for 5.17 at 8, 32 and 80 as before: runs/2026-11-27-26b-h200-step-metadata, -e2b-h200-step-metadata",
    remove_when="SGLang's triton backend prepares decode and verify metadata in init_forward_metadata_in_graph, and chains without a mask.",
    uses=(uses.triton_decode, uses.kernels, uses.decode_graphs),
    hooks=(
        Hook(f"{BACKEND}.__init__", "after", take, "e7fa3a24cfc9"),
        Hook(f"{BACKEND}.init_cuda_graph_state", "around", allocate, "37887eb25efe"),
        Hook(f"{BACKEND}._build_cuda_graph_forward_metadata", "after", unmask, "de605bbc334a"),
        Hook(f"{BACKEND}.init_forward_metadata", "after", unmask_eager, "34c1528c81ae"),
        Hook(f"{BACKEND}._update_decode_kv_buffers", "around", decode_tables, "d57321ec51cd"),
        Hook(f"{BACKEND}._update_target_verify_buffers", "around", verify_tables, "e86fdbb9eed1"),
        Hook(f"{RUNNER}._run_in_graph_metadata_prep", "around", record, "fda92661082d"),
        Hook(f"{RUNNER}._init_replay_attn_metadata", "around", replay, "97bee5dcc92d"),
    ),
)
