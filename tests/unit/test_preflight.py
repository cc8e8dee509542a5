"""Preflight: bad models, assistants and backends are one line that names value and remedy."""

import json
from pathlib import Path
from typing import Any

import pytest

from sglang_gemma4.diagnostics import preflight
from sglang_gemma4.diagnostics.text_geometry import LayerGeometry, text_geometry
from sglang_gemma4.models.config_files import PreflightError

TEXT: dict[str, Any] = {
    "hidden_size": 2816,
    "vocab_size": 262144,
    "num_key_value_heads": 8,
    "head_dim": 256,
    "layer_types": ["sliding_attention", "full_attention"],
}
FULL = {"head_dim": 512, "num_key_value_heads": 2}


def write(folder: Path, **config: Any) -> str:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


@pytest.fixture
def target(tmp_path: Path) -> str:
    text = TEXT | {"per_layer_config": {"1": FULL}}
    return write(tmp_path / "target", architectures=["Gemma4ForConditionalGeneration"], text_config=text)


def assistant(tmp_path: Path, backbone: int = 2816, **changes: Any) -> str:
    text = TEXT | {"hidden_size": 1024, "per_layer_config": {"1": FULL}} | changes
    return write(tmp_path / "assistant", architectures=["Gemma4AssistantForCausalLM"], backbone_hidden_size=backbone, text_config=text)


def mtp(target: str, draft: str | None) -> dict[str, Any]:
    return {"model_path": target, "speculative_algorithm": "NEXTN", "speculative_draft_model_path": draft}


def test_a_fitting_pair_passes(target: str, tmp_path: Path) -> None:
    preflight.check(mtp(target, assistant(tmp_path)))


def test_the_unified_assistant_is_one_too(tmp_path: Path) -> None:
    """It has defaults of its own: configs that say nothing of either value."""
    text = TEXT | {"hidden_size": 3840, "model_type": "gemma4_unified_text"}
    wide = text | {"sliding_window": 1024}
    target = write(tmp_path / "target", architectures=["Gemma4UnifiedForConditionalGeneration"], text_config=wide)
    config = {"architectures": ["Gemma4UnifiedAssistantForCausalLM"], "model_type": "gemma4_unified_assistant", "text_config": text}
    preflight.check(mtp(target, write(tmp_path / "assistant", **config)))
    misfit = write(tmp_path / "misfit", **config, backbone_hidden_size=2816)
    with pytest.raises(PreflightError, match="its backbone_hidden_size is 2816, the model's hidden_size 3840"):
        preflight.check(mtp(target, misfit))


def test_under_force_eagle_a_draft_is_no_assistant(target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NEXTN is EAGLE then: the draft is of any class, its KV of any shape. FROZEN_KV_MTP by name still needs the assistant."""
    llama = write(tmp_path / "llama", architectures=["LlamaForCausalLMEagle", "Gemma4AssistantForCausalLM"], hidden_size=64)
    for forced in (False, True):
        monkeypatch.setenv("SGLANG_GEMMA4_FORCE_EAGLE", str(int(forced)))
        if forced:
            preflight.check(mtp(target, llama))
            with pytest.raises(PreflightError, match="--speculative-algorithm NEXTN needs --speculative-draft-model-path: Gemma 4 has no"):
                preflight.check(mtp(target, None))
        with pytest.raises(PreflightError, match="does not fit"):
            preflight.check(mtp(target, llama) | {"speculative_algorithm": "FROZEN_KV_MTP" if forced else "NEXTN"})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"backbone": 1536}, "backbone_hidden_size is 1536, the model's hidden_size 2816"),
        ({"vocab_size": 1024}, "vocabulary has 1024 tokens, the model's 262144"),
        ({"num_key_value_heads": 4}, "sliding_attention layers read 4 KV heads of 256, the model's have 8 of 256"),
        ({"per_layer_config": {"1": {"head_dim": 256}}}, "full_attention layers read 8 KV heads of 256, the model's have 2 of 512"),
        ({"sliding_window": 1024}, "sliding window is 1024 tokens, the model keeps the KV of 512"),
    ],
)
def test_an_assistant_of_another_size_is_refused(target: str, tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    draft = assistant(tmp_path, **changes)
    with pytest.raises(PreflightError) as error:
        preflight.check(mtp(target, draft))
    assert said in str(error.value)
    assert draft in str(error.value)
    assert "\n" not in str(error.value)


def test_a_target_without_the_layer_type_is_refused(tmp_path: Path) -> None:
    text = TEXT | {"layer_types": ["sliding_attention", "sliding_attention"]}
    alone = write(tmp_path / "sliding", architectures=["Gemma4ForCausalLM"], **text)
    with pytest.raises(PreflightError, match="has full_attention layers, the model has none"):
        preflight.check(mtp(alone, assistant(tmp_path)))


def test_a_target_that_does_not_end_with_the_layer_type_is_refused(tmp_path: Path) -> None:
    """A draft reads the KV of the target's last two layers (gemma4_mtp.py:184)."""
    kinds = ["full_attention", "sliding_attention", "sliding_attention"]
    alone = write(tmp_path / "early", architectures=["Gemma4ForCausalLM"], **TEXT | {"layer_types": kinds, "per_layer_config": {"0": FULL}})
    with pytest.raises(PreflightError, match="full_attention layers read the model's last two layers, which are sliding_attention;"):
        preflight.check(mtp(alone, assistant(tmp_path)))


def test_centroids_divide_the_vocabulary(target: str, tmp_path: Path) -> None:
    draft = Path(assistant(tmp_path)) / "config.json"
    config = json.loads(draft.read_text())
    for centroids in (2048, 2047):
        draft.write_text(json.dumps(config | {"use_ordered_embeddings": True, "num_centroids": centroids}))
        if centroids == 2048:
            preflight.check(mtp(target, str(draft.parent)))
    with pytest.raises(PreflightError, match="its 2047 centroids do not divide its vocabulary of 262144 tokens"):
        preflight.check(mtp(target, str(draft.parent)))


def test_prefill_layer_by_layer_is_refused(target: str) -> None:
    with pytest.raises(PreflightError, match="--enable-pdmux prefills layer by layer, which SGLang's Gemma 4 cannot"):
        preflight.check({"model_path": target, "enable_pdmux": True})


def test_an_embedding_server_is_refused(target: str) -> None:
    with pytest.raises(PreflightError, match="--is-embedding: SGLang's Gemma 4 generates text and pools nothing"):
        preflight.check({"model_path": target, "is_embedding": True})
    preflight.check({"model_path": target, "is_embedding": False})


def test_sizes_of_parallel_forms_are_looked_at(target: str) -> None:
    with pytest.raises(PreflightError, match="--attn-dp-size 2: the MTP draft would wait"):
        preflight.check({"model_path": target, "enable_dp_attention": True, "dp_size": 2, "speculative_algorithm": "NEXTN"})


def test_a_missing_assistant_names_the_flag(target: str) -> None:
    with pytest.raises(PreflightError, match="needs Gemma 4's MTP assistant; add --speculative-draft-model-path"):
        preflight.check(mtp(target, None))


def test_another_model_is_no_assistant(target: str, tmp_path: Path) -> None:
    draft = write(tmp_path / "llama", architectures=["LlamaForCausalLM"])
    with pytest.raises(PreflightError, match="is LlamaForCausalLM, not Gemma4AssistantForCausalLM or Gemma4Unified"):
        preflight.check(mtp(target, draft))


@pytest.mark.parametrize("flag", preflight.BACKEND_FLAGS)
def test_an_unsupported_backend_lists_the_supported(target: str, flag: str) -> None:
    with pytest.raises(PreflightError, match=f"--{flag.replace('_', '-')} flashinfer cannot serve Gemma 4; use one of triton, fa4"):
        preflight.check({"model_path": target, flag: "flashinfer"})


def test_unknown_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PreflightError, match="does not exist"):
        preflight.check({"model_path": str(tmp_path / "nowhere")})
    (tmp_path / "empty").mkdir()
    with pytest.raises(PreflightError, match=r"has no config\.json"):
        preflight.check({"model_path": str(tmp_path / "empty")})
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(PreflightError, match=r"'google/gemma-5-it' is neither a local directory nor to be had"):
        preflight.check({"model_path": "google/gemma-5-it"})
    with pytest.raises(PreflightError, match="not a valid Hugging Face name"):
        preflight.check({"model_path": "no such//name"})


def test_other_models_are_left_alone(tmp_path: Path) -> None:
    llama = write(tmp_path / "llama", architectures=["LlamaForCausalLM"])
    preflight.check({"model_path": llama, "attention_backend": "flashinfer", "speculative_algorithm": "NEXTN"})


def test_every_spelling_of_the_geometry_reads_the_same() -> None:
    sglang = TEXT | {"head_dim": 512, "num_key_value_heads": 2, "swa_head_dim": 256, "swa_num_key_value_heads": 8, "per_layer_config": {}}
    spellings = (
        TEXT | {"per_layer_config": {"1": FULL}},
        TEXT | {"global_head_dim": 512, "num_global_key_value_heads": 2, "attention_k_eq_v": True},
        sglang,
    )
    for text in spellings:
        layers = text_geometry({"text_config": text}).layers
        assert layers == {"sliding_attention": LayerGeometry(8, 256), "full_attention": LayerGeometry(2, 512)}


def test_malformed_configs(target: str, tmp_path: Path) -> None:
    nameless = write(tmp_path / "nameless", architectures=None)
    with pytest.raises(PreflightError, match="is of no architecture, not Gemma4AssistantForCausalLM"):
        preflight.check(mtp(target, nameless))
    (tmp_path / "list").mkdir()
    (tmp_path / "list" / "config.json").write_text("[1]")
    with pytest.raises(PreflightError, match="holds a list where a JSON object is expected"):
        preflight.check({"model_path": str(tmp_path / "list")})


@pytest.mark.parametrize("model", ["owner/name:Q4_K_M", "owner/name/model.gguf", "s3://bucket/model"])
def test_forms_that_sglang_loads_another_way_are_left_to_it(model: str) -> None:
    preflight.check({"model_path": model})


@pytest.mark.parametrize("given", [(0, "fp8_e4m3", ("triton",)), (2, "auto", ("triton",)), (2, "fp8_e4m3", ("trtllm_mha",))])
def test_a_cache_that_shared_layers_can_read_passes(given: tuple[int, str, tuple[str, ...]]) -> None:
    preflight.check_cache_type(*given)


@pytest.mark.parametrize("kind", ["fp8_e4m3", "fp8_e5m2"])
@pytest.mark.parametrize("backends", [("triton",), ("trtllm_mha", "triton")])
def test_a_cache_that_shared_layers_cannot_read_is_refused(kind: str, backends: tuple[str, ...]) -> None:
    with pytest.raises(PreflightError, match=f"--kv-cache-dtype {kind}: 20 layers of this model .*; use --kv-cache-dtype auto"):
        preflight.check_cache_type(20, kind, backends)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, None),
        ({"prefill_backend": "fa4"}, None),
        (
            {"prefill_backend": "trtllm_mha"},
            "attention backend trtllm_mha masks this model's images as text; add --prefill-attention-backend",
        ),
        ({"prefill_backend": "trtllm_mha", "text_only": True}, None),
        ({"prefill_backend": "trtllm_mha", "two_way": False}, None),
        ({"prefill_backend": "intel_amx"}, "intel_amx masks"),
        ({"prefill_backend": "intel_amx", "cpu_engine": True}, None),
        ({"deterministic": True}, "--enable-deterministic-inference takes a kernel"),
        ({"deterministic": True, "prefill_backend": "fa4"}, None),
    ],
)
def test_a_backend_that_cannot_mask_images(changes: dict[str, Any], said: str | None) -> None:
    given = {"two_way": True, "text_only": False, "prefill_backend": "triton", "deterministic": False, "cpu_engine": False, **changes}
    if said is None:
        preflight.check_images(**given)
        return
    with pytest.raises(PreflightError, match=said):
        preflight.check_images(**given)


@pytest.mark.parametrize(
    ("context", "tokens", "refused"),
    [(2048, 1024, True), (1024, 1024, False), (None, 1024, False), (2048, None, False)],
)
def test_a_context_that_no_pool_holds(target: str, context: int | None, tokens: int | None, refused: bool) -> None:
    given = {"model_path": target, "context_length": context, "max_total_tokens": tokens}
    if refused:
        with pytest.raises(PreflightError, match=r"--context-length 2048: one request may have 2048 .* lower --context-length to 1024"):
            preflight.check(given)
    else:
        preflight.check(given)
