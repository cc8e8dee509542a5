"""Configs read without transformers hold what transformers reads, and the towers' stored parameters are those of its modules."""

from typing import Any

import pytest
import torch
import transformers

from sglang_gemma4.models import model_shape, plain_config
from sglang_gemma4.tiny import real_sizes


@pytest.mark.parametrize("of", [real_sizes.target, real_sizes.assistant])
@pytest.mark.parametrize("name", real_sizes.SIZES)
def test_a_text_config_is_the_one_that_transformers_reads(name: str, of: Any) -> None:
    config = of(name)
    ours, theirs = plain_config.text(config), model_shape.text_config(config)
    for field in ("vocab_size", "hidden_size", "intermediate_size", "max_position_embeddings", "sliding_window", *plain_config.TEXT):
        if field != "rope_parameters":
            assert getattr(ours, field) == getattr(theirs, field), field
    shared = of is real_sizes.assistant
    assert model_shape.layers(ours, shared) == model_shape.layers(theirs, shared)
    assert model_shape.parameters(config, ours) == model_shape.parameters(config)
    for mine, other in zip(
        ours.per_layer_config, (theirs.per_layer_config[number] for number in range(len(theirs.layer_types))), strict=True
    ):
        assert (mine.head_dim, mine.num_key_value_heads) == (other.head_dim, other.num_key_value_heads)


@pytest.mark.parametrize("name", real_sizes.SIZES)
def test_a_vision_config_is_the_one_that_transformers_reads(name: str) -> None:
    config = real_sizes.target(name)
    ours, theirs = plain_config.vision(config), transformers.Gemma4Config(vision_config=config["vision_config"]).vision_config
    for field in {*plain_config.VISION, *config["vision_config"]} - {"model_type", "dtype"}:
        assert getattr(ours, field) == getattr(theirs, field), field


@pytest.mark.parametrize("name", real_sizes.SIZES)
def test_the_towers_have_as_many_parameters_as_transformers_modules(name: str) -> None:
    """Counted on a model without memory, whose language model is one small layer."""
    config = real_sizes.target(name)
    small = config["text_config"] | {
        "num_hidden_layers": 1,
        "layer_types": ["full_attention"],
        "num_kv_shared_layers": 0,
        "vocab_size": 512,
    }
    small |= {"num_experts": None, "enable_moe_block": False, "per_layer_config": None}
    kind = getattr(transformers, config["architectures"][0])
    given = {name: value for name, value in config.items() if name not in ("architectures", "text_config")}
    with torch.device("meta"):
        model = kind(kind.config_class(**given, text_config=small))
    parts = [part for part_name, part in model.model.named_children() if part_name != "language_model"]
    assert sum(one.numel() for part in parts for one in part.parameters()) == real_sizes.SIZES[name]["towers"]
