"""The tensors that a configuration asks for, against transformers' own modules and the checkpoints that ship."""

import re
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from sglang_gemma4.checkpoint.tensor_layout import mapped, plain, tensors  # noqa: E402
from sglang_gemma4.tiny import real_sizes, unified  # noqa: E402

DEFAULTS = re.compile(r".*\.(?:input|output)_(?:min|max)$|.*layer_scalar$|lm_head\.weight$")
"""Buffers with a default, and the head, which is tied."""
REAL = [(size, role) for size in real_sizes.SIZES for role in ("target", "assistant")]


def transformers_tensors(model: Any) -> dict[str, tuple[int, ...]]:
    """What a model of transformers has, by our names."""
    return {plain(name): tuple(value.shape) for name, value in model.state_dict().items() if not DEFAULTS.match(plain(name))}


def compare(config: dict[str, Any], theirs: dict[str, tuple[int, ...]]) -> None:
    ours = tensors(config)
    assert set(ours) == set(theirs)
    assert {name: shape for name, shape in ours.items() if shape is not None and shape != theirs[name]} == {}


def made(config: dict[str, Any]) -> Any:
    """transformers' model of a config.json, without memory for its weights."""
    import transformers
    from transformers.initialization import no_init_weights

    with torch.device("meta"), no_init_weights():
        return getattr(transformers, config["architectures"][0])(transformers.AutoConfig.for_model(**config))


@pytest.mark.parametrize(("size", "role"), REAL)
def test_every_tensor_of_a_released_size_and_no_other(size: str, role: str) -> None:
    config = getattr(real_sizes, role)(size)
    model = made(config)
    for spelling in (config, model.config.to_dict()):  # as released, and as transformers saves it
        compare(spelling, transformers_tensors(model))


def test_every_tensor_of_a_12b_and_its_assistant() -> None:
    tokens = {name: number for number, name in enumerate(real_sizes.TOKENS)}
    for model in (unified.build(tokens), unified.build_assistant()):
        compare(model.config.to_dict(), transformers_tensors(model))


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("model.layers.0.mlp.up_proj.weight", "model.language_model.layers.0.mlp.up_proj.weight"),
        ("layers.0.mlp.up_proj.weight", "model.language_model.layers.0.mlp.up_proj.weight"),
        ("language_model.model.embed_tokens.weight", "model.language_model.embed_tokens.weight"),
        ("model.language_model.norm.weight", "model.language_model.norm.weight"),
        ("language_model.lm_head.weight", "lm_head.weight"),
        ("lm_head.weight", "lm_head.weight"),
        ("model.vision_tower.encoder.layers.0.mlp.up_proj.linear.weight", "model.vision_tower.encoder.layers.0.mlp.up_proj.linear.weight"),
        ("vision_tower.std_bias", "vision_tower.std_bias"),
        ("model.embed_vision.patch_ln1.weight", "model.vision_embedder.patch_ln1.weight"),
        ("base_model.model.model.layers.0.mlp.up_proj.weight", "base_model.model.model.layers.0.mlp.up_proj.weight"),
        ("pre_projection.weight", "pre_projection.weight"),
    ],
)
def test_what_sglang_reads_a_name_as(name: str, read: str) -> None:
    assert mapped(name) == read
