"""Which EAGLE-3, DFlash and DSpark drafts are refused before weights are loaded."""

from types import SimpleNamespace
from typing import Any

import pytest

from sglang_gemma4.checkpoint import PreflightError
from sglang_gemma4.diagnostics import kv_format_flags, kv_format_limits, own_draft_limits
from sglang_gemma4.tiny import real_sizes

TARGET = real_sizes.target("26b-a4b")
DFLASH: dict[str, Any] = {
    "architectures": ["DFlashDraftModel"],
    "hidden_size": 2816,
    "dflash_config": {"target_layer_ids": [1, 6, 11, 17, 22, 29], "mask_token_id": 4},
}
DSPARK: dict[str, Any] = {
    "architectures": ["Gemma4DSparkModel"],
    "hidden_size": 2816,
    "vocab_size": 262_144,
    "layer_types": ["full_attention"] * 5,
    "target_layer_ids": [3, 10, 18, 25, 28],
    "mask_token_id": 4,
    "enable_moe_block": False,
    "hidden_size_per_layer_input": 0,
}
EAGLE3: dict[str, Any] = {"architectures": ["LlamaForCausalLMEagle3"], "hidden_size": 2816}
EAGLE: dict[str, Any] = {**EAGLE3, "architectures": ["LlamaForCausalLMEagle"]}


def said(found: dict[str, Any], algorithm: str) -> list[str]:
    return list(own_draft_limits.problems("DRAFT", found, algorithm, TARGET))


def dflash(**own: Any) -> dict[str, Any]:
    return {**DFLASH, "dflash_config": {**DFLASH["dflash_config"], **own}}


def test_drafts_that_fit_pass() -> None:
    assert said(DFLASH, "DFLASH") == said(EAGLE3, "EAGLE3") == said(EAGLE, "EAGLE") == said(DSPARK, "DSPARK") == []
    assert said({**EAGLE3, "hidden_size": 2048, "target_hidden_size": 2816}, "EAGLE3") == []
    assert said({"architectures": ["MuseGlimmerAssistantModel"]}, "DFLASH") == []


@pytest.mark.parametrize(
    ("found", "algorithm", "line"),
    [
        (
            DFLASH,
            "EAGLE3",
            "DRAFT is DFlashDraftModel: --speculative-algorithm EAGLE3 cannot draft with it; name DFLASH instead",
        ),
        (EAGLE3, "DFLASH", "DRAFT is LlamaForCausalLMEagle3: --speculative-algorithm DFLASH cannot draft with it; name EAGLE3"),
        (EAGLE3, "EAGLE", "DRAFT is LlamaForCausalLMEagle3: --speculative-algorithm EAGLE cannot draft with it; name EAGLE3"),
        (DFLASH, "EAGLE", "DRAFT is DFlashDraftModel: --speculative-algorithm EAGLE cannot draft with it; name DFLASH"),
        (EAGLE, "EAGLE3", "DRAFT is LlamaForCausalLMEagle: --speculative-algorithm EAGLE3 cannot draft with it; name EAGLE instead"),
        (DSPARK, "DFLASH", "DRAFT is Gemma4DSparkModel: --speculative-algorithm DFLASH cannot draft with it; name DSPARK instead"),
        (DFLASH, "DSPARK", "DRAFT is DFlashDraftModel: --speculative-algorithm DSPARK cannot draft with it; name DFLASH instead"),
        (
            {"architectures": ["DSparkDraftModel"], "speculators_model_type": "dspark", "draft_vocab_size": 32_000},
            "DSPARK",
            "DRAFT has the speculators library's layout, which SGLang does not read: settings under transformer_layer_config, and mostly a "
            "shorter vocabulary; give a draft of DeepSpec's layout, whose config.json has architectures Gemma4DSparkModel",
        ),
        ({"architectures": ["Qwen3DSparkModel"]}, "DSPARK", "DRAFT is Qwen3DSparkModel, which cannot draft for Gemma 4 by DSPARK; give a"),
        ({"architectures": ["Gemma4ForCausalLM"]}, "DSPARK", "DRAFT is Gemma4ForCausalLM, which cannot draft for Gemma 4 by DSPARK; give"),
        ({**DSPARK, "hidden_size": 3840}, "DSPARK", "DRAFT reads hidden states of 3840 numbers, the model's have 2816; give a draft"),
        ({**DSPARK, "target_layer_ids": [5, 46]}, "DSPARK", "DRAFT: target_layer_ids has 46, and the model has layers 0 to 29; give a"),
        ({**DSPARK, "mask_token_id": 262_144}, "DSPARK", "DRAFT masks with token 262144, and the model has tokens 0 to 262143; give a"),
        ({**DSPARK, "vocab_size": 32_000}, "DSPARK", "DRAFT has 32000 tokens, the model 262144; give a draft that was trained for it"),
        ({**DSPARK, "enable_moe_block": True}, "DSPARK", "DRAFT has layers of experts (enable_moe_block), which no DSpark draft of"),
        (
            {**DSPARK, "layer_types": ["sliding_attention", "full_attention"]},
            "DSPARK",
            "DRAFT has layers of sliding_attention; DSpark drafts with full_attention alone are served: give a draft of DeepSpec's layout",
        ),
        ({**DFLASH, "hidden_size": 5376}, "DFLASH", "DRAFT reads hidden states of 5376 numbers, the model's have 2816; give a draft"),
        (
            {**EAGLE3, "target_hidden_size": 5376},
            "EAGLE3",
            "DRAFT reads hidden states of 5376 numbers, the model's have 2816; give a draft",
        ),
        (dflash(target_layer_ids=[1, 30]), "DFLASH", "DRAFT: target_layer_ids has 30, and the model has layers 0 to 29; give a draft"),
        (dflash(target_layer_ids=[1, 1]), "DFLASH", "DRAFT: target_layer_ids names a layer twice, which SGLang captures once; give a"),
        (dflash(mask_token_id=262_144), "DFLASH", "DRAFT masks with token 262144, and the model has tokens 0 to 262143; give a draft"),
        (
            {**EAGLE3, "eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 40]}},
            "EAGLE3",
            "DRAFT: eagle_aux_hidden_state_layer_ids has 40",
        ),
    ],
)
def test_drafts_that_do_not_fit_are_refused(found: dict[str, Any], algorithm: str, line: str) -> None:
    (answer,) = said(found, algorithm)
    assert answer.startswith(line)


def test_six_layers_are_too_few_for_the_default_three() -> None:
    (answer,) = own_draft_limits.problems("DRAFT", {}, "EAGLE3", {"num_hidden_layers": 6})
    assert answer.startswith("DRAFT names no eagle_aux_hidden_state_layer_ids, and SGLang's three are not different ones of 6 layers")


@pytest.mark.parametrize("algorithm", ["EAGLE", "EAGLE3", "DFLASH"])
def test_keys_with_scales_are_refused(algorithm: str) -> None:
    given: dict[str, Any] = dict.fromkeys(kv_format_limits.FIELDS)
    given |= {
        "kv_cache_dtype": "int8_per_token_head",
        "disaggregation_mode": "null",
        "prefill_backend": "triton",
        "decode_backend": "triton",
    }

    def check(**more: Any) -> None:
        kv_format_limits.check({**given, **more}, gemma4=True, cpu_engine=False, capability=(9, 0))

    check(speculative_algorithm="FROZEN_KV_MTP")
    with pytest.raises(PreflightError, match=f"--kv-cache-dtype int8_per_token_head: --speculative-algorithm {algorithm} has"):
        check(speculative_algorithm=algorithm)


@pytest.mark.parametrize(
    ("typed", "resolved"), [("eagle3", "EAGLE3"), ("dflash", "DFLASH"), ("Eagle", "EAGLE"), ("nextn", "EAGLE"), (None, None)]
)
def test_the_algorithm_is_judged_as_sglang_will_read_it(typed: str | None, resolved: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The KV format is checked before SGLang puts the name in capitals and knows the draft."""
    given = SimpleNamespace(speculative_algorithm=typed, speculative_draft_model_path="DRAFT", trust_remote_code=False)
    draft = SimpleNamespace(architectures=["LlamaForCausalLMEagle"])
    monkeypatch.setattr("sglang.srt.utils.hf_transformers_utils.get_config", lambda *_args, **_named: draft)
    assert kv_format_flags._algorithm(given) == resolved
    draft.architectures = ["Gemma4AssistantForCausalLM"]
    if resolved == "EAGLE":
        assert kv_format_flags._algorithm(given) == "FROZEN_KV_MTP"
