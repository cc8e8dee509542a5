"""What each patch does under ``--enable-deterministic-inference``: an answer's bits may not depend on what runs beside it."""

from types import SimpleNamespace
from typing import Any

import pytest

from sglang_gemma4.patches import load, names
from sglang_gemma4.patching import uses


def names_in(text: str) -> set[str]:
    """The words of a text."""
    return set(text.split())


STANDS_ASIDE = names_in(
    "verify_attention balanced_parts prefill_attention flash_prefill flash_in_graphs few_row_linear register_products few_token_experts "
    "prefill_experts chunk_experts grouped_experts router_choice moe_tiles triple_norm layer_tail ple_tail qkv_rope "
    "yoco yoco_graph prefill_beside batched_vision kv_formats"
)
"""Their kernels, or when these run, depend on how many rows a forward has."""
SAME_BITS = {
    "decode_attention": "splits keys by length alone: tests/interpreted/test_few_query_attention.py, tests/gpu/test_deterministic_gpu.py",
    "four_bit_linear": "without few_row_linear every weight is dequantised and multiplied by SGLang's batch-invariant matmul",
    "dense_copies": "the same, dequantised once",
    "shared_query": "multiplies by SGLang's own product",
    "attention_groups": "element by element; each group's attention is SGLang's, the FFNs' matmuls are batch-invariant",
    "sharded_head": "each rank multiplies by SGLang's own product",
    "prefill_graph": "pads a prefill with rows that no other reads",
    "graph_sizes": "pads a decode step with rows that no other reads",
    "kv_write": "element by element",
    "fresh_kv": "element by element",
    "unit_kv_scales": "a scale of 1 is not multiplied",
    "dense_beside_experts": "the same kernels on two streams; asks few_row_linear, which stands aside",
    "dependent_launch": "the same kernels, started earlier",
    "image_masks": "refused with this flag where images attend both ways (preflight)",
    "image_padding": "one image at a time",
    "audio_padding": "one sound at a time",
    "image_transport": "the same features on another way",
    "router_scale": "element by element",
    "expert_gelu": "element by element",
    "quantised_experts": "SGLang's experts, whose tiles are fixed with this flag",
    "triton_window": "which keys are seen",
    "verify_penalties": "row by row",
    "verify_cuts": "row by row",
    "chain_acceptance": "compares token ids",
    "dummy_weights": "the weights themselves",
    "language_model_only": "no images",
    "lora": "SGLang's LoRA kernels",
    "lora_mtp": "SGLang's LoRA kernels",
    "step_metadata": "which keys are read, as integers",
    "page_table_rows": "which keys are read, as integers",
}
"""They compute or move numbers of the target, and an answer's bits stay its own."""
DRAFTS_ONLY = names_in(
    "dspark_draft frozen_views unified_draft frozen_chain draft_argmax draft_graph adaptive_draft pd_draft "
    "draft_budget sync_mtp worker_v1 mtp_defaults force_eagle mamba_check"
)
"""What is drafted decides how many tokens a step accepts, not which."""
NO_NUMBERS = names_in(
    "report patch_metrics start_times compile_ahead preflight text_only_config unified_config weight_updates released_memory "
    "image_cache untied_head whole_checkpoints gptq_layout quantised_names one_chunk host_hits memory_reserve feature_memory "
    "stop_order card_clock prefill_turns hetero_tp media_errors answer_parser parser_defaults tool_grammar isolation swa_ratio swa_sizing "
    "own_window pool_bound shared_kv pool_checks stage_layers cpu_experts json_blanks pool_hits bounds_traps cpu_engine "
    "cpu_fork cpu_sampling cpu_images cpu_lora cpu_quantised client_errors request_values admin_routes request_media media_bounds "
    "input_embeds pool_limits client_grammars session_slots lost_prefill ollama_api client_protocols one_bos message_media video_times"
)
"""Configuration, scheduling, parsing and reports; the CPU engine's parts compute on a CPU, which the flag is not for."""


def test_every_patch_has_one_verdict() -> None:
    verdicts = [STANDS_ASIDE, set(SAME_BITS), DRAFTS_ONLY, NO_NUMBERS]
    assert sorted(set(names()) - set().union(*verdicts)) == [], "say what the patch does to an answer's bits beside other requests"
    assert sum(map(len, verdicts)) == len(set().union(*verdicts)), "one verdict each"


@pytest.mark.parametrize("name", sorted(STANDS_ASIDE))
def test_what_depends_on_the_batch_is_shown_as_idle(name: str) -> None:
    server: Any = SimpleNamespace(arguments=SimpleNamespace(enable_deterministic_inference=True))
    assert uses.any_batch in load(name).uses
    reason = uses.any_batch(server)
    assert reason is not None
    assert reason.startswith("--enable-deterministic-inference")


@pytest.mark.parametrize("name", sorted(set(names()) - STANDS_ASIDE))
def test_what_does_not_is_not(name: str) -> None:
    assert uses.any_batch not in load(name).uses
