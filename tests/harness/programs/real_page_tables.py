"""SGLang's own trtllm_mha and FlashAttention metadata under the traps, on the CPU: prints what each case ended in, as JSON.

Their kernels need a GPU, the tables they are given do not: the backends are made without their constructors, and Triton's
interpreter runs the kernels that fill the tables. A process of its own, because Triton decides that when a kernel is
defined; ``test_traps_page_tables`` sets its environment.
"""

import importlib
import json
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt.layers.attention.trtllm_mha_backend import TRTLLMHAAttnBackend
from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool
from sglang.srt.model_executor.forward_batch_info import ForwardMode

from sglang_gemma4.diagnostics import traps

PAGE, CONTEXT, FULL, SLIDING, DISTANCE, DRAFT_TOKENS = 4, 32, 64, 32, 7, 4
LENGTHS = (18, 11)


def flash_attention() -> Any:
    """The class behind fa3 and fa4."""
    importlib.import_module("sgl_kernel").merge_state_v2 = None  # type: ignore[attr-defined]  # imported there, called for topk > 1 only
    return importlib.import_module("sglang.srt.layers.attention.flashattention_backend").FlashAttentionBackend


def swa_pool() -> Any:
    pool = object.__new__(SWAKVPool)
    pool.page_size, pool.layers_mapping = PAGE, {0: (0, True), 1: (0, False)}
    pool.full_kv_pool, pool.swa_kv_pool = SimpleNamespace(size=FULL), SimpleNamespace(size=SLIDING)
    pool.full_to_swa_index_mapping = torch.cat([torch.zeros(FULL + PAGE, dtype=torch.int64), torch.tensor([-1])])
    return pool


def case(kind: type, mode: ForwardMode, draft: bool = False) -> tuple[Any, Any, torch.Tensor, Any]:
    """An armed backend, its batch of two requests, the request table and the pool."""
    pool, table = swa_pool(), torch.zeros(4, CONTEXT + 8, dtype=torch.int32)
    new = DRAFT_TOKENS if mode.is_target_verify() else 0
    free = sliding = PAGE
    for row, length in zip((1, 2), LENGTHS, strict=True):
        pages = -(-(length + new) // PAGE) * PAGE
        slots = torch.arange(free, free + pages)
        table[row, :pages] = slots.int()
        kept = (length - 1 - DISTANCE) // PAGE * PAGE
        pool.full_to_swa_index_mapping[slots[kept:]] = torch.arange(sliding, sliding + pages - kept)
        free, sliding = free + pages, sliding + pages - kept
    backend: Any = object.__new__(kind)
    translator = SimpleNamespace(is_translating=False, read_table=lambda *_, **__: SimpleNamespace(is_translated=False))
    backend.__dict__.update(
        token_to_kv_pool=pool, req_to_token_pool=SimpleNamespace(req_to_token=table), req_to_token=table, page_size=PAGE, device="cpu",
        kv_index_translator=translator, max_context_len=CONTEXT, max_num_pages=CONTEXT // PAGE, topk=1, speculative_step_id=0,
        speculative_num_steps=3, speculative_num_draft_tokens=DRAFT_TOKENS, use_sliding_window_kv_pool=False, attn_backend_list=None,
    )  # fmt: skip
    if kind is TRTLLMHAAttnBackend:
        backend.__dict__.update(
            _swa_kv_pool=pool, _swa_full_to_swa_mapping=pool.full_to_swa_index_mapping, expand_encoder_only_verify=False, use_fmha_v2=False,
            is_xqa_impl=False, decode_cuda_graph_metadata={}, target_verify_metadata={},
        )  # fmt: skip
    else:
        backend.__dict__.update(
            has_swa=True, is_prefill_aware_swa=False, local_attn_builder=None, _kv_shard_pool=None, use_mla=False, fa_impl_ver=4,
            _get_scheduler_metadata=None, sliding_window_size=DISTANCE, use_sliding_window_kv_pool=not draft, is_draft_runner=draft,
            _get_swa_write_locations=lambda batch: pool.full_to_swa_index_mapping[batch.out_cache_loc],
            _compute_scheduler_metadata=lambda *_: None,
        )  # fmt: skip
    last = [[table[row, length - 1 + i] for i in range(1 - bool(new), new or 1)] for row, length in zip((1, 2), LENGTHS, strict=True)]
    batch = SimpleNamespace(
        forward_mode=mode, batch_size=2, seq_lens=torch.tensor(LENGTHS), seq_lens_cpu=None, req_pool_indices=torch.tensor([1, 2]),
        input_ids=torch.zeros(2 * (new or 1)), positions=torch.zeros(2 * (new or 1)), kv_loc_plan=None, encoder_lens=None,
        out_cache_loc=None if draft or new else torch.tensor(last).flatten().long(), attn_cp_metadata=None, rids=["one", "two"],
        spec_info=SimpleNamespace(ragged_verify_layout=None, draft_token_num=DRAFT_TOKENS) if new else None,
    )  # fmt: skip
    traps.arm(backend, "bounds_traps", DISTANCE, draft)
    return backend, batch, table, pool


def outcome(prepare: Callable[[], Any]) -> str:
    """ "passed", or the error's type and message without its dump."""
    try:
        prepare()
    except Exception as error:
        return f"{type(error).__name__}: {str(error).split('; `')[0]}"
    return "passed"


def replay(backend: Any, batch: Any) -> str:
    """Capture with an empty batch's shape, then prepare ``batch`` as before a replay."""
    backend.init_cuda_graph_state(2, 2 * DRAFT_TOKENS)
    backend.init_forward_metadata_out_graph(batch, in_capture=True)
    return outcome(partial(backend.init_forward_metadata_out_graph, batch))


def poisoned(backend: Any, name: str, place: tuple[int, int], value: int) -> None:
    """Overwrite one entry whenever the backend has filled its tables."""
    for method in ("init_forward_metadata_in_graph", "_fill_page_table_device"):
        original = getattr(backend, method)

        def broken(*args: Any, original: Any = original, method: str = method) -> None:
            original(*args)
            metadata = backend.forward_metadata if method.endswith("graph") else args[0]
            getattr(metadata, name)[place] = value

        setattr(backend, method, broken)


def main() -> None:
    """All cases by name."""
    found: dict[str, str] = {}
    trtllm, fa = TRTLLMHAAttnBackend, flash_attention()
    for mode in (ForwardMode.DECODE, ForwardMode.TARGET_VERIFY):
        name = mode.name.lower()
        backend, batch, _, _ = case(trtllm, mode)
        found[f"trtllm_mha {name}"] = outcome(partial(backend.init_forward_metadata, batch))
        found[f"trtllm_mha {name} replay"] = replay(*case(trtllm, mode)[:2])
        backend, batch, _, _ = case(trtllm, mode)
        poisoned(backend, "page_table", (1, 2), 17)
        found[f"trtllm_mha {name} full page"] = outcome(partial(backend.init_forward_metadata, batch))
        backend, batch, _, _ = case(trtllm, mode)
        poisoned(backend, "swa_page_table", (0, 4), 9)
        found[f"trtllm_mha {name} replay sliding page"] = replay(backend, batch)
    backend, batch, table, _ = case(trtllm, ForwardMode.TARGET_VERIFY)
    table[1] = table[1, 0]
    batch.seq_lens = torch.tensor([CONTEXT - 2, 11])
    found["trtllm_mha draft tokens past the context"] = outcome(partial(backend.init_forward_metadata, batch))
    backend, batch, _, _ = case(trtllm, ForwardMode.DECODE, draft=True)
    found["trtllm_mha draft"] = outcome(partial(backend.init_forward_metadata, batch))
    fa_target, fa_batch, _, _ = case(fa, ForwardMode.DECODE)
    found["fa4 decode"] = outcome(partial(fa_target.init_forward_metadata, fa_batch))
    fa_draft, fa_batch, fa_table, fa_pool = case(fa, ForwardMode.DECODE, draft=True)
    fa_table[2, 8:12] = torch.arange(40, 44).int()  # page 10: the full pool has 16, the sliding one 8
    fa_pool.full_to_swa_index_mapping[40:44] = torch.arange(32, 36)
    found["fa4 draft"] = outcome(partial(fa_draft.init_forward_metadata, fa_batch))
    print("CASES " + json.dumps(found))


if __name__ == "__main__":
    main()
