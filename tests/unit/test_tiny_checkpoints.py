"""Writing checkpoints: what is written where, what is refused, and how much all of it weighs."""

import json
from pathlib import Path
from typing import Any

import pytest

from sglang_gemma4.tiny import checkpoints, real_sizes


@pytest.mark.parametrize("name", checkpoints.NAMES)
def test_trained(name: str, tmp_path: Path) -> None:
    target, assistant = checkpoints.write(name, str(tmp_path / "m"))
    assert assistant == target + "-assistant"
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    draft = json.loads((tmp_path / "m-assistant" / "config.json").read_text())
    unified = "Unified" if name == "tiny-12b" else ""
    assert config["architectures"] == [f"Gemma4{unified}ForConditionalGeneration"]
    assert (config["audio_config"] is None) is not bool(unified)
    assert draft["architectures"] == [f"Gemma4{unified}AssistantForCausalLM"]
    assert draft["backbone_hidden_size"] == config["text_config"]["hidden_size"]
    for file in ("model.safetensors", "tokenizer.json", "chat_template.jinja", "processor_config.json", "generation_config.json"):
        assert (tmp_path / "m" / file).stat().st_size > 0
    checkpoints.write(name, str(tmp_path / "m"))  # our own directory may be written again


def test_features_of_the_big_sisters() -> None:
    def text(name: str) -> Any:
        return json.loads((checkpoints.SHIPPED / name / "config.json").read_text())["text_config"]

    moe, edge, dense, unified = (text(n) for n in ("tiny-26b-a4b", "tiny-e2b", "tiny-31b", "tiny-12b"))
    assert (unified["num_attention_heads"], unified["num_key_value_heads"]) == (16, 8)
    assert unified["per_layer_config"]["5"]["num_key_value_heads"] == 1
    assert moe["enable_moe_block"]
    assert moe["attention_k_eq_v"]
    assert moe["top_k_experts"] < moe["num_experts"]
    assert edge["num_kv_shared_layers"]
    assert edge["use_double_wide_mlp"]
    assert edge["hidden_size_per_layer_input"]
    assert dense["attention_k_eq_v"]
    assert not dense["enable_moe_block"]
    draft = json.loads((checkpoints.SHIPPED / "tiny-e2b-assistant" / "config.json").read_text())
    assert draft["use_ordered_embeddings"]
    assert draft["num_centroids"] > draft["centroid_intermediate_top_k"]


@pytest.mark.parametrize("name", checkpoints.RANDOM_NAMES)
def test_real_sizes(name: str, tmp_path: Path) -> None:
    checkpoints.write(name, str(tmp_path / "m"), random=True)
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    text, draft = config["text_config"], real_sizes.assistant(name)
    assert text["vocab_size"] == 262_144
    assert len(text["layer_types"]) == text["num_hidden_layers"]
    assert text["layer_types"][-1] == "full_attention"
    assert draft["text_config"]["num_key_value_heads"] == text["num_key_value_heads"]


def test_real_sizes_through_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    for name, shared, kv in (("e2b", 20, (1, 1)), ("e4b", 18, (2, 2)), ("12b", 0, (8, 1)), ("26b-a4b", 0, (8, 2)), ("31b", 0, (16, 4))):
        checkpoints.write(name, str(tmp_path / name), random=True)
        text = transformers.AutoConfig.from_pretrained(tmp_path / name).text_config
        layers = text.per_layer_config
        full = text.num_hidden_layers - 1
        assert text.num_kv_shared_layers == shared
        assert (layers[0].num_key_value_heads, layers[full].num_key_value_heads) == kv
        assert (layers[0].head_dim, layers[full].head_dim) == (256, 512)
        draft = transformers.AutoConfig.from_pretrained(tmp_path / f"{name}-assistant")
        assert draft.backbone_hidden_size == text.hidden_size
        assert draft.use_ordered_embeddings == (name in ("e2b", "e4b"))


def test_errors(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"unknown checkpoint 'tiny-7b'.*tiny-e2b"):
        checkpoints.write("tiny-7b", str(tmp_path / "a"))
    with pytest.raises(ValueError, match="--random"):
        checkpoints.write("26b-a4b", str(tmp_path / "a"))
    with pytest.raises(ValueError, match="drop random"):
        checkpoints.write("tiny-e2b", str(tmp_path / "a"), random=True)
    assert not (tmp_path / "a").exists()
    (tmp_path / "b-assistant").mkdir()
    (tmp_path / "b-assistant" / "precious.txt").write_text("x")
    with pytest.raises(FileExistsError, match="new or empty"):
        checkpoints.write("tiny-e2b", str(tmp_path / "b"))
    assert not (tmp_path / "b").exists()
    assert (tmp_path / "b-assistant" / "precious.txt").exists()
    (tmp_path / "c").write_text("x")
    with pytest.raises(FileExistsError, match="is a file"):
        checkpoints.write("tiny-e2b", str(tmp_path / "c"))


def test_total_size_and_quality() -> None:
    assert sum(f.stat().st_size for f in checkpoints.SHIPPED.rglob("*") if f.is_file()) <= 25 * 2**20
    results = json.loads((checkpoints.SHIPPED / "RESULTS.json").read_text())
    for name in checkpoints.NAMES:
        r = results[name]
        assert min(r["four_choice_0_shot"], r["four_choice_3_shot"]) >= 0.7
        assert r["colours_of_30"] >= 27
        assert r.get("animals_of_30", 30) >= 27
        assert 2.0 <= r["accept_length"]["all"] <= 3.7


def test_the_processor_of_a_real_size_uses_the_ids_of_its_config(tmp_path: Path) -> None:
    import numpy
    from PIL import Image
    from transformers import AutoProcessor

    checkpoints.write("26b-a4b", str(tmp_path / "m"), random=True)
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    processor = AutoProcessor.from_pretrained(tmp_path / "m")
    image = Image.fromarray(numpy.zeros((480, 480, 3), "uint8"))
    text = processor.apply_chat_template(
        [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What colour is it?"}]}], add_generation_prompt=True
    )
    ids = processor(text=[text], images=[[image]], return_tensors="pt")["input_ids"][0].tolist()
    assert ids.count(config["image_token_id"]) > 200, "480 x 480 pixels in patches of 16, pooled 3 x 3"
    assert config["boi_token_id"] in ids
    assert config["eoi_token_id"] in ids
    assert config["eos_token_id"][1] in ids, "the turn's end"
    assert processor.tokenizer.decode(processor.tokenizer.encode("Who rules Belm?", add_special_tokens=False)) == "Who rules Belm?"


def test_a_12b_takes_images_and_sounds_without_towers(tmp_path: Path) -> None:
    """An image is 48 x 48 pixels a soft token, a sound 640 samples; the ends of both are never written."""
    import numpy
    from PIL import Image
    from transformers import AutoProcessor

    checkpoints.write("12b", str(tmp_path / "m"), random=True)
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    assert config["architectures"] == ["Gemma4UnifiedForConditionalGeneration"]
    processor = AutoProcessor.from_pretrained(tmp_path / "m")
    image = Image.fromarray(numpy.zeros((480, 480, 3), "uint8"))
    sound: Any = numpy.zeros(16_000, "float32")
    out = processor(text=["<|image|> <|audio|>"], images=[[image]], audio=[sound], return_tensors="pt")
    ids = out["input_ids"][0].tolist()
    assert out["pixel_values"].shape[-1] == 3 * 48**2
    assert ids.count(config["audio_token_id"]) == 25
    assert 200 < ids.count(config["image_token_id"]) <= 280
    generation = json.loads((tmp_path / "m" / "generation_config.json").read_text())
    assert generation["suppress_tokens"] == [config["eoi_token_id"], config["eoa_token_id"]]


def test_every_token_of_a_real_size_reads_as_text(tmp_path: Path) -> None:
    """SGLang streams text: a client cannot time a token that has none."""
    from transformers import AutoTokenizer

    target, _ = checkpoints.write("e2b", str(tmp_path / "e2b"), random=True)
    tokenizer = AutoTokenizer.from_pretrained(target)
    assert len(tokenizer) == json.loads((Path(target) / "config.json").read_text())["text_config"]["vocab_size"]
    empty = [number for number in range(2000, 250_000, 97) if not tokenizer.decode([number]).strip()]
    assert empty == []
    assert tokenizer.decode(tokenizer.encode("Who rules Belm?", add_special_tokens=False)) == "Who rules Belm?"
