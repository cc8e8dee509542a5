"""The shipped tokenizer and chat template: round trips, special tokens, Gemma 4's wire format."""

import json
import random
from typing import Any

import pytest

from sglang_gemma4.tiny import chat_format, checkpoints, dialogues, families, images, tokenizer, world
from sglang_gemma4.tiny.dialogues import Dialogue

pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")


@pytest.fixture(scope="module", params=families.TINY)
def raw(request: Any) -> Any:
    return tokenizer.load_raw(checkpoints.SHIPPED / request.param)


@pytest.mark.parametrize("text", ["Who rules Arvo?\nA. Edda", "héllo ☃ 日本 12 {a:b}\n\n  x", "<|turn>user\nhi<turn|>\n", " "])
def test_round_trip(raw: Any, text: str) -> None:
    assert raw.decode(raw.encode(text, add_special_tokens=False).ids, skip_special_tokens=False) == text


def test_special_tokens_are_single(raw: Any) -> None:
    assert raw.get_vocab_size() == families.VOCABULARY
    assert [raw.token_to_id(t) for t in ("<pad>", "<eos>", "<bos>", "<unk>")] == [0, 1, 2, 3]
    for token in tokenizer.CONTROL:
        assert raw.encode(token, add_special_tokens=False).ids == [raw.token_to_id(token)]
    for letter in "ABCD":
        assert len(raw.encode("Answer: " + letter, add_special_tokens=False).ids) == 3


def test_config_names_the_tokenizers_ids(raw: Any) -> None:
    for name in families.TINY:
        config = json.loads((checkpoints.SHIPPED / name / "config.json").read_text())
        assert config["image_token_id"] == raw.token_to_id("<|image|>")
        assert config["eoa_token_id"] == raw.token_to_id("<audio|>")
        stops = json.loads((checkpoints.SHIPPED / name / "generation_config.json").read_text())["eos_token_id"]
        assert stops == [1, raw.token_to_id("<turn|>"), raw.token_to_id("<|tool_response>")]


def test_turns_and_generation_prompt() -> None:
    d = Dialogue([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}])
    assert chat_format.render(d) == "<bos><|turn>system\nBe brief.<turn|>\n<|turn>user\nHi<turn|>\n<|turn>model\nHo<turn|>\n"
    assert chat_format.render(d, prompt_only=True).endswith("Hi<turn|>\n<|turn>model\n")


def test_images_and_thoughts() -> None:
    d, _ = images.colour_chat(random.Random(0), 2)
    assert "<|turn>user\n<|image|><|image|>What colours" in chat_format.render(d)
    thought = chat_format.render(dialogues.chat(random.Random(0), turns=2, thinking=True))
    assert thought.count("<|channel>thought\n") == 1
    assert thought.startswith("<bos><|turn>system\n<|think|>")
    again = Dialogue([{"role": "user", "content": "a"}, {"role": "assistant", "content": "<|channel>thought\nx\n<channel|>b"}])
    assert chat_format.render(again).endswith("<|turn>model\nb<turn|>\n")


def test_tools() -> None:
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "tool_calls": [{"id": "1", "function": {"name": "get_weather", "arguments": {"city": "Arvo", "days": 2, "now": True}}}],
        },
        {"role": "tool", "tool_call_id": "1", "content": "sunny"},
        {"role": "assistant", "content": "Sunny."},
    ]
    text = chat_format.render(Dialogue(messages, tools=[dialogues.WEATHER_TOOL]))
    assert (
        '<|tool>declaration:get_weather{description:<|"|>Gets the weather of a town.<|"|>,parameters:{properties:{city:{description:'
        '<|"|>The name of the town.<|"|>,type:<|"|>STRING<|"|>}},required:[<|"|>city<|"|>],type:<|"|>OBJECT<|"|>}}<tool|>'
    ) in text
    assert text.endswith(
        '<|turn>model\n<|tool_call>call:get_weather{city:<|"|>Arvo<|"|>,days:2,now:true}<tool_call|>'
        '<|tool_response>response:get_weather{value:<|"|>sunny<|"|>}<tool_response|>Sunny.<turn|>\n'
    )
    written = [p for p, by_model in chat_format.stretches(text) if by_model]
    assert written[0].endswith("<tool_call|><|tool_response>")
    assert written[1] == "Sunny.<turn|>"
    assert chat_format.render(Dialogue(messages), prompt_only=True).endswith("<tool_response|>")


def test_template_is_the_shipped_one() -> None:
    for name in families.TINY:
        assert (checkpoints.SHIPPED / name / "chat_template.jinja").read_text() == chat_format.TEMPLATE.read_text()
    assert world.passage(random.Random(0))
