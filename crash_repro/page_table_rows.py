"""Draft tokens past the end of the context: page-table rows run past their width and past the table. Needs no GPU: Triton's interpreter.

A real trtllm_mha backend prepares a verify batch outside a CUDA graph. Only what FlashInfer would bring is replaced,
and memory: each table stands in a larger block, so that a write past it shows instead of hitting a stranger.
"""

import os
import sys
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import case  # type: ignore[import-not-found]

PAGE, CONTEXT, DRAFT_TOKENS = 16, 64, 4
EXTRA = 24
"""Columns of req_to_token past the context: mem_cache/allocation_sizing.py:96 leaves room for the draft tokens."""
LENGTHS = (CONTEXT - 2, 10, CONTEXT - 2)
"""The outer rows are requests at the end of their context: a committed sequence is at most that long."""
SLIDING_OFFSET = 7
"""Pages between a full slot and its sliding one."""
POISON = -7


def main() -> int:
    """The entries attention will read of each row, and what lies behind the table."""
    os.environ["TRITON_INTERPRET"] = "1"
    from sglang_gemma4.cpu.environment import prepare_this_process

    prepare_this_process()
    import torch
    from sglang.srt.plugins import load_plugins

    load_plugins()
    req_to_token = torch.arange(4 * (CONTEXT + EXTRA), dtype=torch.int32).view(4, -1) + 1000 * PAGE
    blocks: list[Any] = []

    def guarded(shape: tuple[int, int], **options: Any) -> Any:
        blocks.append(torch.full((shape[0] + 1, shape[1]), POISON, **options))
        return blocks[-1][: shape[0]]

    backend = _backend(req_to_token)
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    batch = SimpleNamespace(
        forward_mode=ForwardMode.TARGET_VERIFY, batch_size=3, seq_lens=torch.tensor(LENGTHS), req_pool_indices=torch.tensor([1, 2, 3]),
        input_ids=torch.zeros(3 * DRAFT_TOKENS), kv_loc_plan=None, out_cache_loc=None, attn_cp_metadata=None,
        spec_info=SimpleNamespace(ragged_verify_layout=None),
    )  # fmt: skip
    with patch.object(torch, "empty", guarded):
        backend.init_forward_metadata(batch)
    read = (-(-backend.forward_metadata.cache_seqlens_int32 // PAGE)).tolist()
    status = 0
    for name, offset, block in zip(("full", "sliding"), (0, SLIDING_OFFSET), blocks, strict=True):
        memory, width = block.flatten().tolist(), block.shape[1]
        print(f"--- {name}: rows of {width} pages; attention reads {read} of them; {POISON} was there before")
        pages = [(row[::PAGE] // PAGE + offset).tolist() for row in req_to_token[1:]]
        expected = [row[:count] for row, count in zip(pages, read, strict=True)] + [[POISON] * width]
        seen = [memory[n * width : n * width + count] for n, count in enumerate(read)] + [memory[-width:]]
        status |= case.verdict(expected, seen)
    return status


def _backend(req_to_token: Any) -> Any:
    import torch
    from sglang.srt.layers.attention import trtllm_mha_backend as module
    from sglang.srt.layers.attention.flashinfer_backend import FlashInferAttnBackend
    from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool

    pool = object.__new__(SWAKVPool)
    pool.full_to_swa_index_mapping = torch.arange(int(req_to_token.max()) + 2) + SLIDING_OFFSET * PAGE
    quantisation = SimpleNamespace(resolve_attention_access=lambda *_: SimpleNamespace(kind=None, scale_recipe=None))
    translator = SimpleNamespace(is_translating=False, read_table=lambda *_, **__: SimpleNamespace(is_translated=False))

    def flashinfer_part(self: Any, *_: Any) -> None:
        self.kv_cache_quant_method, self.kv_index_translator, self.use_sliding_window_kv_pool = quantisation, translator, False

    config = SimpleNamespace(context_len=CONTEXT, hidden_size=8, num_attention_heads=2)
    runner = SimpleNamespace(
        model_config=config, kv_cache_dtype=torch.float32, dtype=torch.float32, page_size=PAGE, device="cpu", is_draft_worker=False,
        req_to_token_pool=SimpleNamespace(req_to_token=req_to_token), token_to_kv_pool=pool, max_running_requests=3,
        prefill_attention_backend_str="", decode_attention_backend_str="", model=torch.nn.Module(),
    )  # fmt: skip
    spec = SimpleNamespace(speculative_eagle_topk=1, speculative_num_draft_tokens=DRAFT_TOKENS)
    with (
        patch.object(FlashInferAttnBackend, "__init__", flashinfer_part),
        patch.object(module, "get_spec", lambda: spec),
        patch.object(module, "get_buffer", lambda _name, _make: torch.zeros(1)),
        patch.object(module, "make_persistent_multi_ctas_kv_counter_buffer", lambda *_, **__: None),
    ):
        return module.TRTLLMHAAttnBackend(runner)


if __name__ == "__main__":
    sys.exit(main())
