"""What the checks of flags let through: values at their limits, as typed and as parsed. What they refuse is in ``server_flags.toml``."""

import json
from pathlib import Path
from typing import Any

import pytest

from sglang_gemma4.checkpoint import PreflightError
from sglang_gemma4.diagnostics import draft_limits, path_limits, pool_limits, preflight, rank_limits, value_limits
from sglang_gemma4.tiny import checkpoints

MODEL = str(checkpoints.SHIPPED / "tiny-26b-a4b")
DRAFT = {"hidden_size": 128, "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 2, 4]}, "dflash_config": {"target_layer_ids": [0, 5]}}
"""What a draft's config.json says of the six layers of 128 that it reads."""


@pytest.mark.parametrize(
    "given",
    [
        {"page_size": 3, "chunked_prefill_size": 96},
        {"page_size": 3, "chunked_prefill_size": -1},
        {"page_size": 3, "disaggregation_mode": "decode"},
        {"page_size": "64", "chunked_prefill_size": "128", "max_running_requests": "1", "mem_fraction_static": "0.9"},
        {"context_length": 1, "max_total_tokens": 1},
        {"schedule_policy": "shortest-prefill-first"},
        {"enable_prefill_delayer": True},
        {"enable_hierarchical_cache": True, "hicache_ratio": 0.5, "hicache_size": 0},
        {"hicache_ratio": 0.0},
        {"enable_hierarchical_cache": True, "hicache_ratio": 0.0, "hicache_size": 1},
        {"offload_group_size": -1, "model_impl": "SGLang"},
        {"lora_paths": ["owner/adapter", "mine=owner/adapter"]},
        {"lora_paths": {"mine": "owner/adapter"}},
        {"lora_paths": [{"lora_name": "mine", "lora_path": "owner/adapter"}]},
        {"tokenizer_path": MODEL, "chat_template": "chatml"},
        {"load_format": "safetensors"},
        {"speculative_draft_model_path": f"{MODEL}-assistant", "speculative_accept_threshold_single": 1.0},
        {"speculative_draft_model_path": f"{MODEL}-assistant", "speculative_accept_threshold_acc": "1"},
        {"speculative_draft_model_path": "auto", "speculative_use_rejection_sampling": False},
        {"speculative_algorithm": "EAGLE", "speculative_draft_model_path": "auto"},
        {"speculative_algorithm": "NGRAM"},
    ],
)
def test_what_can_be_served_passes(given: dict[str, Any]) -> None:
    preflight.check({"model_path": MODEL, **given})


def test_an_adapter_passes(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    preflight.check({"model_path": MODEL, "lora_paths": [f"mine={tmp_path}"]})
    preflight.check({"model_path": MODEL, "lora_paths": str(tmp_path)})


def test_drafts_of_other_algorithms_pass(tmp_path: Path) -> None:
    """SGLang serves Gemma 4 with EAGLE3 and DFLASH drafts; a token map is EAGLE's."""
    for algorithm, name in (("EAGLE", "LlamaForCausalLMEagle"), ("EAGLE3", "LlamaForCausalLMEagle3"), ("DFLASH", "DFlashDraftModel")):
        (tmp_path / "config.json").write_text(json.dumps({"architectures": [name], **DRAFT}))
        given = {"speculative_algorithm": algorithm, "speculative_draft_model_path": str(tmp_path), "speculative_token_map": "/a/map.pt"}
        preflight.check({"model_path": MODEL, **given})


def test_on_the_cpu_engine_triton_s_attention_verifies_every_draft(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLMEagle"]}))
    given = {"speculative_algorithm": "EAGLE", "speculative_draft_model_path": str(tmp_path), "attention_backend": "triton"}
    preflight.check({"model_path": MODEL, **given}, cpu_engine=True)


@pytest.mark.parametrize(("algorithm", "name"), [("EAGLE", "LlamaForCausalLMEagle"), ("EAGLE3", "LlamaForCausalLMEagle3")])
def test_its_own_attention_drafts_chains_alone(algorithm: str, name: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": [name], **DRAFT}))
    given = {"model_path": MODEL, "speculative_algorithm": algorithm, "speculative_draft_model_path": str(tmp_path)}
    preflight.check({**given, "speculative_eagle_topk": 1}, cpu_engine=True)
    preflight.check({**given, "speculative_eagle_topk": 2})
    with pytest.raises(PreflightError, match=f"--speculative-eagle-topk 2: the CPU reference engine drafts chains with {algorithm};"):
        preflight.check({**given, "speculative_eagle_topk": 2}, cpu_engine=True)


@pytest.mark.parametrize(("algorithm", "name"), [("eagle3", "LlamaForCausalLMEagle3"), ("DFLASH", "DFlashDraftModel")])
def test_hidden_states_are_the_draft_s(algorithm: str, name: str, tmp_path: Path) -> None:
    """SGLang returns those of three layers side by side under EAGLE-3, and none under DFlash, both with status 200."""
    (tmp_path / "config.json").write_text(json.dumps({"architectures": [name], **DRAFT}))
    draft: dict[str, Any] = {"speculative_algorithm": algorithm, "speculative_draft_model_path": str(tmp_path)}
    for asked in ({"enable_return_hidden_states": True}, {"return_hidden_states_mode": "last"}):
        with pytest.raises(PreflightError, match=r"return-hidden-states.*: under .* the hidden states are those that the draft reads"):
            preflight.check({"model_path": MODEL, **draft, **asked})
    preflight.check({"model_path": MODEL, "speculative_draft_model_path": "auto", "enable_return_hidden_states": True})


@pytest.mark.parametrize(("algorithm", "name"), [("EAGLE3", "LlamaForCausalLMEagle3"), ("DFLASH", "DFlashDraftModel")])
def test_it_verifies_without_rejection_sampling(algorithm: str, name: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": [name], **DRAFT}))
    draft: dict[str, Any] = {"speculative_algorithm": algorithm, "speculative_draft_model_path": str(tmp_path)}
    given = {"model_path": MODEL, **draft, "speculative_use_rejection_sampling": True}
    preflight.check(given)
    with pytest.raises(PreflightError, match="--speculative-use-rejection-sampling: its kernels are for GPUs"):
        preflight.check(given, cpu_engine=True)


def split(ranks: int, **more: Any) -> str | None:
    """What is said of so many ranks for a model of 26B-A4B's heads, and a vision tower of E2B's 12."""
    text = {"num_attention_heads": 16, "num_key_value_heads": 8, "num_global_key_value_heads": 2, "attention_k_eq_v": True}
    config = {"text_config": {**text, "intermediate_size": 2112}, "vision_config": {"num_attention_heads": 12}}
    return next(iter(rank_limits.problems(config, {"tp_size": ranks, **more})), None)


def test_ranks_divide_heads_and_widths() -> None:
    assert split(1) is split(2) is split(4) is split(8, language_model_only=True) is split(16, mm_enable_dp_encoder=True) is None
    assert split(3) == "--tp-size 3 does not divide the model's 16 attention heads; use one of 1, 2, 4"
    assert split(8) == "--tp-size 8 does not divide the model's 12 attention heads of the vision tower; use one of 1, 2, 4"
    assert split(8, attn_dp_size=2) is split(8, dp_size=2, enable_dp_attention=True) is None, "heads are split over four ranks"
    assert split(6, attn_dp_size=3) is None, "a replica's two ranks divide the heads, all six the FFN"
    assert "does not divide the model's intermediate_size of 2112" in str(split(10, attn_dp_size=5))
    assert split(2, attn_dp_size=4) == "--tp-size 2 is below --attn-dp-size 4; give --tp-size 4 or a multiple of it"


def pool(tokens: int | None, ratio: float | None = None, sized: bool = True, **resolved: Any) -> list[str]:
    """What is said of a pool on a model with a window of 64 tokens."""
    given = {"page_size": 1, "chunked_prefill_size": 512, "disable_overlap_schedule": True, **resolved}
    return list(pool_limits.problems(tokens, ratio, given, 64, 4096, interval=1, sized=sized))


@pytest.mark.parametrize(
    ("enough", "more"),
    [
        (65, {}),
        (80, {"page_size": 16}),
        (192, {"page_size": 128}),
        (82, {"sized": False}),
        (82, {"pp_size": 2}),
        (82, {"chunked_prefill_size": -1}),
        (434, {"sized": False, "swa_full_tokens_ratio": 0.15}),
    ],
)
def test_the_smallest_pool(enough: int, more: dict[str, Any]) -> None:
    """A window and a page: of the whole pool where it is sized by window, else of the sliding layers' share, 0.8 by default."""
    page = more.get("page_size", 1)
    assert pool(-(-enough // page) * page, **more) == []
    assert "one request needs" in pool(enough - page - 1, **more)[0]


def test_a_ratio_leaves_what_a_running_request_takes() -> None:
    assert "a running request takes up to 67" in pool(1000, 0.066)[0]
    assert pool(1000, 0.067) == []
    assert "up to 78" in pool(1000, 0.077, speculative_algorithm="FROZEN_KV_MTP", speculative_num_draft_tokens=4)[0]
    assert "up to 1000" in pool(1000, 0.5, chunked_prefill_size=-1)[0], "a whole prompt is in the sliding pool"
    assert pool(None, 0.01) == [], "memory decides"
    assert pool(8, enable_unified_memory=True) == []


def test_what_is_read_is_declared() -> None:
    fields = {*value_limits.FIELDS, *path_limits.FIELDS, *draft_limits.FIELDS, *rank_limits.FIELDS}
    assert fields <= set(preflight.FIELDS)
