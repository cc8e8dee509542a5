"""What tiny-12b learns from: its packed rows of images and sounds, and weights that begin as tiny-31b's."""

import random
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from sglang_gemma4.tiny import checkpoints, export, images, media_rows, sounds, tokenizer, training, unified, upcycle  # noqa: E402
from sglang_gemma4.tiny.packed_forward import hidden_states, logits_of, to_device  # noqa: E402

SOURCE = checkpoints.SHIPPED / upcycle.SOURCE


@pytest.fixture(scope="module")
def raw() -> Any:
    return tokenizer.load_raw(SOURCE)


def test_more_heads_give_the_same_answers(raw: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import Gemma4ForConditionalGeneration

    monkeypatch.setattr(upcycle, "NOISE", 0.0)
    ids = torch.tensor([raw.encode("<bos>Who rules Belm? The ruler of Belm is", add_special_tokens=False).ids])
    with torch.no_grad():
        ours = training.build_target("tiny-12b", export.special_ids(raw), 0)(input_ids=ids).logits
        theirs = Gemma4ForConditionalGeneration.from_pretrained(SOURCE, dtype=torch.float32)(input_ids=ids).logits
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)


def test_a_layer_of_another_width_is_no_matter_of_heads(raw: Any) -> None:
    class Wider:
        config = unified.build_assistant().config

        def state_dict(self) -> dict[str, Any]:
            return {"model.embed_tokens.weight": torch.zeros(1024, 65)}

    with pytest.raises(ValueError, match=r"shape \(1024, 64\), tiny-31b's \(1024, 65\)"):
        upcycle.fill(unified.build_assistant(), Wider(), 0)


def test_a_packed_row_is_what_the_processor_makes(raw: Any, tmp_path: Path) -> None:
    """A chat with an image and a sound as training sees it: the processor's tokens, and transformers' own logits."""
    from transformers import AutoProcessor

    pool = media_rows.pool(9, 12)
    row = media_rows.media_document(media_rows.MediaEncoder(raw, pool), random.Random(3), "both", 1)
    model = unified.build(export.special_ids(raw), seed=2)
    unified.save(model, raw, tmp_path / "m")
    model = model.float()
    processor = AutoProcessor.from_pretrained(tmp_path / "m")
    shown = [int(n) for n in dict.fromkeys(row["picture"][row["picture"] != -1].tolist())]
    picture, heard = shown[0], media_rows.FIRST_SOUND - shown[1]
    image = images.draw(picture, media_rows.COLOURS[picture % len(media_rows.COLOURS)])
    wave = sounds.draw(heard, sounds.ANIMALS[heard % len(sounds.ANIMALS)])
    text = raw.decode([t for t, number in zip(row["id"].tolist(), row["picture"].tolist(), strict=True) if number == -1], False)
    text = text.replace("<|image><image|>", "<|image|>").replace("<|audio><audio|>", "<|audio|>")
    given = processor(text=[text], images=[[image]], audio=[wave], return_tensors="pt")
    assert given["input_ids"][0].tolist() == row["id"].tolist()
    # forward() alone lets images attend both ways on full layers too; generate() does not, and no server.
    masks = model.create_masks_for_generate(
        model.config,
        torch.zeros(1, len(row), model.config.text_config.hidden_size),
        given.pop("attention_mask"),
        None,
        torch.arange(len(row))[None],
        given.pop("mm_token_type_ids"),
    )
    with torch.no_grad():
        theirs = model(**given, attention_mask=masks).logits
        ours = logits_of(model, hidden_states(model, to_device(row[None], pool, model.config.text_config, "cpu")).last_hidden_state)
    torch.testing.assert_close(ours, theirs, atol=2e-2, rtol=0)  # the pool holds pixels and samples in float16


def test_sounds_begin_alike_and_are_of_one_pitch_each() -> None:
    assert len(set(sounds.PITCHES.values())) == len(sounds.ANIMALS)
    assert all(pitch * sounds.FRAME % sounds.RATE == 0 for pitch in sounds.PITCHES.values()), "whole periods in a frame"
    wave = sounds.draw(5, "wolf")
    assert sounds.framed(wave).shape == (-(-len(wave) // sounds.FRAME), sounds.FRAME)
