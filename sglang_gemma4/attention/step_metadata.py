"""The metadata of decode and verify steps on triton: one launch inside the step's CUDA graph, and no mask for a chain
of drafts.

Stock prepares them before each replay by some twenty launches, each of which takes the host longer than the GPU. They
follow from lengths, request rows and slots that the graph's runner keeps at fixed addresses, so the graph can do it
(as the draft's does, :mod:`graph_metadata`). A chain of drafts needs no mask: each draft sees those before it, which
is what a kernel does without one.
"""

from types import SimpleNamespace
from typing import Any

import torch

from sglang_gemma4.attention import graph_metadata
from sglang_gemma4.attention.verify import VerifyAttention
from sglang_gemma4.kernels.attention.step_metadata import Rail, Sliding, step_metadata
from sglang_gemma4.patching import takes

NAME = "step_metadata"


def verifies_chains(backend: Any, runner: Any) -> bool:
    """Whether this backend verifies only chains of an MTP assistant, whatever the batch. If so, they have no mask
    from here on.

    A layer that our kernel does not take goes to SGLang's kernel without a mask too, so ``verify_attention`` has to
    be installed before it.
    """
    chains = (
        not runner.is_draft_worker
        and runner.spec_algorithm.is_frozen_kv_mtp()
        and backend.topk == 1
        and backend.num_draft_tokens == backend.speculative_num_steps + 1
        and isinstance(getattr(backend, "verify_splitkv_fwd", None), VerifyAttention)
    )
    if chains:
        from sglang.kernels.ops.attention.extend_attention import extend_attention_fwd

        backend.verify_splitkv_fwd.chain_kernel = extend_attention_fwd
    return chains


def small_mask(requests: int, tokens: int, device: Any) -> Any:
    """The ``VerifyMask`` of a backend that reads none. SGLang then builds a chain by one launch, which needs a mask
    of tokens x tokens.

    Stock's mask has a byte for each draft token and key, filled and copied in each step: 268 MB for 256 requests of
    up to 262,144 tokens. This mask's mode differs from that of a mask that the worker v1 makes. Only watermarks ask
    for the mode, and they are refused for such drafts.
    """
    from sglang.srt.layers.attention.verify_mask import maybe_create_verify_mask

    return maybe_create_verify_mask(
        is_draft_runner=False, skip_prefill=False, max_bs=requests, max_context_len=0, num_draft_tokens=tokens, device=device,
        is_read=False, dtype=torch.uint8,
    )  # fmt: skip


def reason_against(backend: Any) -> str | None:
    """Why SGLang's launches derive this backend's metadata, or None."""
    from sglang.srt.mem_cache.base_swa_memory_pool import BaseSWAKVPool
    from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool

    if reason := graph_metadata.reason_against_metadata(backend):
        return reason
    pool = backend.token_to_kv_pool
    if isinstance(pool, BaseSWAKVPool) and not isinstance(pool, SWAKVPool):
        return f"{type(pool).__name__} maps its slots in a way of its own"
    if (mapping := getattr(pool, "full_to_swa_index_mapping", None)) is not None and mapping.dtype != torch.int64:
        return f"{type(pool).__name__} maps its slots by {mapping.dtype}"
    return None


def fill(backend: Any, requests: int, lengths: torch.Tensor, rows: torch.Tensor, queries: int) -> None:
    """Fill the backend's index buffers for a step of ``queries`` tokens a request, or for a decode step (0)."""
    from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool

    sliding, window, pool = None, backend.sliding_window_size, backend.token_to_kv_pool
    if window is not None and window > 0:
        sliding = Sliding(
            rail=Rail(backend.window_kv_indptr, backend.cuda_graph_window_kv_indices),
            window=window,
            mapping=pool.full_to_swa_index_mapping if isinstance(pool, SWAKVPool) else None,
            first=backend.cuda_graph_window_kv_offsets if queries else None,
        )
    full, table = Rail(backend.kv_indptr, backend.cuda_graph_kv_indices), backend.kv_index_translator.req_to_token
    step_metadata(lengths[:requests], rows[:requests], table, full, sliding, backend.qo_indptr if queries else None, queries)


def fill_decode(backend: Any, requests: int, lengths: torch.Tensor, rows: torch.Tensor) -> tuple[Any, Any, Any, torch.Tensor]:
    """Returns what ``_update_decode_kv_buffers`` does; SGLang's own decode kernel takes its splits from the windows'
    lengths."""
    fill(backend, requests, lengths, rows, 0)
    size = backend.sliding_window_size
    windows = lengths[:requests].clamp(max=size) if size is not None and size > 0 else None
    window_indptr = None if backend.window_kv_indptr is None else backend.window_kv_indptr[: requests + 1]
    return backend.kv_indptr[: requests + 1], window_indptr, windows, lengths[:requests]


def without_mask(backend: Any, spec_info: Any) -> Any:
    """A verify input without a mask, with what ``_update_target_verify_buffers`` reads."""
    return SimpleNamespace(custom_mask=None, num_tokens_per_req=backend._target_verify_num_tokens_per_req(spec_info))


def reason_against_recording(runner: Any, backend: Any, forward_batch: Any) -> str | None:
    """Why a decode runner's graphs do not contain their metadata, or None."""
    mode = forward_batch.forward_mode
    if type(runner).__name__ != "DecodeCudaGraphRunner":
        return f"{type(runner).__name__} prepares its batches in a way of its own"
    if not (mode.is_target_verify() or (mode.is_decode() and forward_batch.spec_info is None)):
        return f"its graphs are of {mode.name}"
    if runner.enable_two_batch_overlap or runner.enable_pdmux or runner.ragged_verify_mode or runner.is_encoder_decoder:
        return "two-batch overlap, PD multiplexing, ragged verify steps or an encoder"
    lora = runner.model_runner.lora_manager
    if lora is not None and lora.attn_dp_enabled:
        return "LoRA with data-parallel attention prepares its batch with them"
    if runner._metadata_glue is not None or runner._early_verify_metadata is not None:
        return "SGLANG_ENABLE_METADATA_GLUE_GRAPH or early metadata replays them"
    return reason_against(backend)


def record(backend: Any, forward_batch: Any) -> None:
    """Inside a graph's capture, before the model: derive the metadata from the tensors that the graph is replayed with."""
    backend._apply_cuda_graph_metadata(
        plan=forward_batch.kv_loc_plan,
        bs=forward_batch.batch_size,
        req_pool_indices=forward_batch.req_pool_indices,
        seq_lens=forward_batch.seq_lens,
        forward_mode=forward_batch.forward_mode,
        spec_info=forward_batch.spec_info,
    )
    if backend.use_sliding_window_kv_pool:
        written = forward_batch.out_cache_loc
        mapping = backend.token_to_kv_pool.full_to_swa_index_mapping
        torch.index_select(mapping, 0, written, out=backend.cuda_graph_swa_out_cache_loc[: written.shape[0]])


def records(runner: Any, backend: Any, forward_batch: Any) -> bool:
    """Whether the graphs of this runner contain their metadata; decided with its first graph."""
    return takes(NAME, reason_against_recording(runner, backend, forward_batch), "its metadata are prepared before each replay")
