"""Names of ignored modules as SGLang calls them, and quantised layers that SGLang never quantises."""

import re
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from sglang_gemma4.models.quantised_names import Attention, attention_of, mapped  # noqa: E402

PLAIN = Attention(frozenset(), frozenset())


@pytest.mark.parametrize(
    ("name", "theirs"),
    [
        ("model.vision_tower.encoder.layers.0.self_attn.q_proj.linear", "model.vision_tower.encoder.layers.0.self_attn.q_proj"),
        ("model.vision_tower.encoder.layers.3.mlp.gate_proj.linear", "model.vision_tower.encoder.layers.3.mlp.gate_proj"),
        ("model.language_model.layers.1.experts.0.up_proj", "model.language_model.layers.1.moe.experts.0.up_proj"),
        ("language_model.model.layers.2.mlp.down_proj", "model.language_model.layers.2.mlp.down_proj"),
        ("model.layers.2.mlp.down_proj", "model.language_model.layers.2.mlp.down_proj"),
    ],
)
def test_sglang_s_name_stands_beside_the_checkpoint_s(name: str, theirs: str) -> None:
    assert mapped([name], PLAIN) == [name, theirs]


def test_what_has_the_same_name_and_patterns_stay_alone() -> None:
    names = [
        "lm_head",
        "re:.*vision_tower.*",
        "model.language_model.layers.0.router.proj",
        "model.vision_tower.encoder.layers.0.mlp.down_proj.linear",
    ]
    assert mapped(names, PLAIN) == names


def test_a_projection_that_the_checkpoint_has_not_follows_the_one_it_is_fused_with() -> None:
    attention = Attention(k_is_v=frozenset({5}), shared=frozenset({7}))
    at = "model.language_model.layers.{}.self_attn.{}_proj".format
    assert mapped([at(5, "k")], attention) == [at(5, "k"), at(5, "v")]
    assert mapped([at(7, "q")], attention) == [at(7, "q"), at(7, "k"), at(7, "v")]
    assert mapped([at(4, "k"), at(4, "q")], attention) == [at(4, "k"), at(4, "q")]
    assert mapped(["model.vision_tower.encoder.layers.5.self_attn.k_proj"], attention) == [
        "model.vision_tower.encoder.layers.5.self_attn.k_proj"
    ]


def test_what_a_text_config_s_layers_lack() -> None:
    text = SimpleNamespace(layer_types=["sliding_attention", "full_attention"] * 2, attention_k_eq_v=True, num_kv_shared_layers=1)
    assert attention_of(text) == Attention(frozenset({1, 3}), frozenset({3}))
    assert attention_of(SimpleNamespace(layer_types=["full_attention"])) == PLAIN


def test_the_audio_tower_has_sglang_s_own_names() -> None:
    def renamed(name: str) -> str:
        return name.replace("layers.0.self_attn.", "conformer.0.attention.attn.")

    assert mapped(["model.audio_tower.layers.0.self_attn.q_proj.linear"], PLAIN, renamed) == [
        "model.audio_tower.layers.0.self_attn.q_proj.linear",
        "model.audio_tower.conformer.0.attention.attn.q_proj.linear",
        "model.audio_tower.layers.0.self_attn.q_proj",
        "model.audio_tower.conformer.0.attention.attn.q_proj",
    ]


@pytest.mark.parametrize("form", ["fp8-dynamic", "fp8-static", "w4a16-g32"])
@pytest.mark.parametrize(
    "layer", ["layers.0.router.proj", "model.language_model.embed_tokens_per_layer", "model.language_model.embed_tokens"]
)
def test_quantised_routers_and_tables_are_read_with_their_scales(layer: str, form: str) -> None:
    from sglang_gemma4.models.quantised_checkpoint import dequantised
    from sglang_gemma4.tiny import quantise
    from sglang_gemma4.tiny.quantisation import FORMATS

    weight = torch.randn(16, 64, dtype=torch.bfloat16, generator=torch.Generator().manual_seed(0))
    parts = quantise.compress(weight, FORMATS[form])
    given = [("a.norm.weight", weight), *((f"{layer}.{name}", value) for name, value in parts.items())]
    given += [("b.mlp.down_proj.weight_scale", weight)]
    found = dict(dequantised(given))
    assert set(found) == {"a.norm.weight", f"{layer}.weight", "b.mlp.down_proj.weight_scale"}
    assert torch.equal(found[f"{layer}.weight"].float(), quantise.decompress(parts, FORMATS[form]).to(torch.bfloat16).float())
    with pytest.raises(ValueError, match=rf"of the quantised {re.escape(layer)} the checkpoint has"):
        list(dequantised(given[1:2]))


def test_tables_in_bfloat16_stay_the_same_tensors() -> None:
    """Without a copy: E2B's per-layer table has more numbers than its layers."""
    from sglang_gemma4.models.quantised_checkpoint import dequantised

    table = torch.randn(16, 64, dtype=torch.bfloat16)
    ((name, found),) = dequantised([("model.language_model.embed_tokens_per_layer.weight", table)])
    assert (name, found is table) == ("model.language_model.embed_tokens_per_layer.weight", True)
