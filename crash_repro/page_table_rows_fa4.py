"""Draft tokens past the end of the context on fa4, in CUDA graphs: attention reads into the next row. Needs no GPU: Triton's interpreter.

A real ``FlashAttentionBackend``, made as the registry makes it, prepares the replay of a verify batch. Only the FlashAttention kernel is
missing: what it would read of each row is read here from the same memory.
"""

import os
import sys
from types import SimpleNamespace
from typing import Any

import case  # type: ignore[import-not-found]
import fa4_view  # type: ignore[import-not-found]

PAGE, CONTEXT, DRAFT_TOKENS = fa4_view.PAGE, 16, 4
EXTRA = 8
"""Columns of req_to_token past the context: mem_cache/allocation_sizing.py:96 leaves room for the draft tokens."""
LENGTHS = (CONTEXT - 2, 5, CONTEXT - 2)
"""The outer rows are requests at the end of their context: a committed sequence is at most that long."""


def main() -> int:
    """The pages that attention will read for each request."""
    os.environ["TRITON_INTERPRET"] = "1"
    from sglang_gemma4.cpu.environment import prepare_this_process

    prepare_this_process()
    import sgl_kernel  # type: ignore[import-untyped,unused-ignore]
    import torch

    sgl_kernel.merge_state_v2 = None  # imported by the backend, called for topk > 1 only
    from sglang.srt.layers.attention import flashattention_backend as module
    from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS
    from sglang.srt.model_executor.forward_batch_info import ForwardMode
    from sglang.srt.plugins import load_plugins

    load_plugins()
    requests = len(LENGTHS)
    req_to_token = torch.arange(PAGE, PAGE + requests * (CONTEXT + EXTRA), dtype=torch.int32).view(requests, -1)
    pool = SimpleNamespace()  # of full layers; the sliding ones' table has the same rows
    backend = fa4_view.make_backend(module, ATTENTION_BACKENDS["fa4"], req_to_token, pool, pool, CONTEXT, draft=False)
    batch: Any = SimpleNamespace(
        forward_mode=ForwardMode.TARGET_VERIFY, batch_size=requests, seq_lens=torch.tensor(LENGTHS), seq_lens_cpu=None,
        req_pool_indices=torch.arange(requests), positions=torch.zeros(requests * DRAFT_TOKENS), kv_loc_plan=None, encoder_lens=None,
        out_cache_loc=None, spec_info=SimpleNamespace(ragged_verify_layout=None),
    )  # fmt: skip
    backend.init_cuda_graph_state(requests + 1, (requests + 1) * DRAFT_TOKENS)
    for capture in (True, False):
        backend.init_forward_metadata_out_graph(batch, in_capture=capture)
    metadata = backend.target_verify_metadata[requests]
    counts = (-(-metadata.cache_seqlens_int32 // PAGE)).tolist()
    width = metadata.page_table.shape[1]
    memory = backend.target_verify_metadata["page_table"].flatten().tolist()  # of one request more than the batch has
    print(f"rows of {width} pages; attention reads {counts} of them")
    expected = [(row[::PAGE] // PAGE)[:count].tolist() for row, count in zip(req_to_token, counts, strict=True)]
    return int(case.verdict(expected, [memory[row * width : row * width + count] for row, count in enumerate(counts)]))


if __name__ == "__main__":
    sys.exit(main())
