"""No page-table row runs into the next one where draft tokens pass the end of the context."""

from typing import Any

from sglang_gemma4.patching import Entry, Hook, Patch, uses

TRTLLM = "sglang.srt.layers.attention.trtllm_mha_backend.TRTLLMHAAttnBackend"
MODULE = "sglang.kernels.ops.attention.trtllm_mha_page_table"


def make_room_for_draft_tokens(_result: None, backend: Any, *_args: Any, **_kwargs: Any) -> None:
    """After ``TRTLLMHAAttnBackend.__init__``: rows as long as a request's in ``req_to_token``, which has that room."""
    backend.max_num_pages = max(backend.max_num_pages, -(-backend.req_to_token.shape[1] // backend.page_size))


def create_flash_attention(runner: Any) -> Any:
    """The backend for ``--attention-backend fa4``; the tables of its CUDA graphs are allocated later, as wide as these say."""
    from sglang.srt.layers.attention.attention_registry import create_flashattention_v4_backend

    backend = create_flashattention_v4_backend(runner)
    if hasattr(backend, "max_context_len"):  # its diffusion variant is another class
        backend.max_context_len = max(backend.max_context_len, backend.req_to_token.shape[1])
        backend.max_num_pages = -(-backend.max_context_len // backend.page_size)
    return backend


PATCH = Patch(
    switch="SGLANG_GEMMA4_MODEL_FIXES",
    why="Rows hold the context alone. Where it ends on a page, the draft tokens of a request near its end need one page more: the eager "
    "builder writes it into the next row or past the table, and attention reads it there, in CUDA graphs too.",
    evidence="kernels/ops/attention/trtllm_mha_page_table.py:70, 87 (no bound; trtllm_mha_graph_metadata.py:86 has one) · "
    "srt/layers/attention/trtllm_mha_backend.py:351 (width), :1291 (lengths) · srt/layers/attention/flashattention_backend.py:196, 2432",
    remove_when="build_trtllm_mha_page_table stops at the table's width and that width counts draft tokens.",
    uses=(uses.speculation,),
    hooks=(
        Hook(f"{MODULE}.build_trtllm_mha_page_table", "replace", "sglang_gemma4.kernels.attention.page_rows:page_rows", "d9dc698b1936"),
        Hook(f"{TRTLLM}.__init__", "after", make_room_for_draft_tokens, "f348dbe404c7"),
        Entry("sglang.srt.layers.attention.attention_registry.ATTENTION_BACKENDS", "fa4", lambda: create_flash_attention, "68fea9d1891f"),
    ),
)
