"""Quantised tiny checkpoints: compressed-tensors reads their config, levels are near the weights, and what does not divide is refused."""

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import load  # noqa: E402

from sglang_gemma4.tiny import checkpoints, quantisation, quantise, real_sizes  # noqa: E402
from sglang_gemma4.tiny.quantisation import FORMATS  # noqa: E402

ERROR = {"fp8-dynamic": 0.03, "fp8-static": 0.03, "fp8-block": 0.03, "w4a16-g32": 0.12, "w4a16-g128": 0.15, "w4a16-asym-g32": 0.11}
"""The largest root mean square of the error, of the weights' own."""


@pytest.mark.parametrize("name", FORMATS)
def test_levels_are_near_the_weights(name: str) -> None:
    form = quantisation.tiny(FORMATS[name])
    weight = torch.randn(64, 256, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    parts = quantise.compress(weight, form)
    error = (quantise.decompress(parts, form).float() - weight.float()).std() / weight.float().std()
    assert error < ERROR[name]
    stored = sum(tensor.numel() * tensor.element_size() for part, tensor in parts.items() if part != "weight_shape")
    assert stored / weight.numel() == pytest.approx(form.bytes_per_weight, rel=0.02)


@pytest.mark.parametrize("name", FORMATS)
def test_compressed_tensors_reads_the_config(name: str) -> None:
    from compressed_tensors.quantization import QuantizationConfig

    read = QuantizationConfig.model_validate({k: v for k, v in quantisation.config(FORMATS[name]).items() if not k.endswith("_config")})
    assert read.format == FORMATS[name].layout
    (group,) = read.config_groups.values()
    assert group.weights.strategy == FORMATS[name].weights["strategy"]


def test_what_is_written() -> None:
    """Experts one by one, routers and towers as they are and named in ``ignore``, K = V layers without a v_proj."""
    files = quantise.quantised(checkpoints.SHIPPED / "tiny-26b-a4b", FORMATS["w4a16-g32"])
    tensors, config = load(files["model.safetensors"]), json.loads(files["config.json"])
    layer = "model.language_model.layers.5"
    assert {f"{layer}.experts.15.{part}_proj.weight_packed" for part in ("gate", "up", "down")} < set(tensors)
    assert f"{layer}.self_attn.k_proj.weight_packed" in tensors
    assert not any(name.startswith(f"{layer}.self_attn.v_proj") for name in tensors)
    ignored = config["quantization_config"]["ignore"]
    for name in (
        f"{layer}.router.proj",
        "model.vision_tower.encoder.layers.0.self_attn.q_proj.linear",
        "model.embed_vision.embedding_projection",
    ):
        assert name in ignored
        assert tensors[f"{name}.weight"].dtype == torch.bfloat16
    assert not any("_packed" in name for name in tensors if "vision" in name or "router" in name)


@pytest.mark.parametrize(
    ("size", "form", "said"),
    [
        ("26b-a4b", "w4a16-g128", "groups of 128 do not divide intermediate_size 2112 of 26b-a4b"),
        ("26b-a4b", "fp8-block", "blocks of 128 do not divide intermediate_size 2112 of 26b-a4b"),
        ("26b-a4b", "int3", "--quantization int3: unknown; there are fp8-dynamic"),
    ],
)
def test_a_format_that_does_not_divide_a_size_is_refused_before_anything_is_written(
    size: str, form: str, said: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=said):
        checkpoints.write(size, str(tmp_path / "model"), random=True, quantised=form)
    assert not (tmp_path / "model").exists()


def test_a_config_only_checkpoint_keeps_its_assistant_as_it_is(tmp_path: Path) -> None:
    target, assistant = checkpoints.write("26b-a4b", str(tmp_path / "model"), random=True, quantised="fp8-dynamic")
    config = json.loads(Path(target, "config.json").read_text())
    assert config.pop("quantization_config") == quantisation.config(FORMATS["fp8-dynamic"])
    assert config == json.loads(json.dumps(real_sizes.target("26b-a4b")))
    assert "quantization_config" not in json.loads(Path(assistant, "config.json").read_text())


def test_what_projects_a_12b_s_images_is_ignored_by_both_of_its_names() -> None:
    """transformers saves it as ``vision_embedder`` and compares ignore lists with its own ``embed_vision``."""
    config = json.loads(quantise.quantised(checkpoints.SHIPPED / "tiny-12b", FORMATS["w4a16-g32"])["config.json"])
    ignored = config["quantization_config"]["ignore"]
    assert {"model.vision_embedder.patch_dense", "model.embed_vision.patch_dense"} <= set(ignored)
    assert {"model.embed_vision.embedding_projection", "model.embed_vision.multimodal_embedder.embedding_projection"} <= set(ignored)
    assert not any(name.startswith("model.language_model.") for name in ignored)
