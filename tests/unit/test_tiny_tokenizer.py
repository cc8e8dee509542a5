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
        assert config.get("eoa_token_id", config["eoa_token_index"]) == raw.token_to_id("<audio|>")
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


CALLED: list[dict[str, Any]] = [
    {"role": "user", "content": "Weather?"},
    {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "get_weather", "arguments": {"city": "Arvo"}}}]},
    {"role": "tool", "tool_call_id": "1", "content": "sunny"},
]
ASKED: dict[str, tuple[list[dict[str, Any]], dict[bool, str]]] = {
    "a question": (CALLED[:1], {False: "<|turn>model\n", True: "<|turn>model\n"}),
    "a tool's result": (CALLED, {False: "<tool_response|>", True: "<tool_response|><|channel>thought\n"}),
    "a call without a result": (CALLED[:2], {False: "<tool_call|>", True: "<tool_call|>"}),
    "a question behind a result": ([*CALLED, CALLED[0]], {False: "Weather?<turn|>\n<|turn>model\n", True: "<|turn>model\n"}),
    "an answer behind a result": ([*CALLED, {"role": "assistant", "content": "Sun."}, CALLED[0]], {False: "model\n", True: "model\n"}),
}
"""Conversations, and how their generation prompts end without and with thinking."""


@pytest.mark.parametrize("empty", [False, True])
@pytest.mark.parametrize("thinking", [False, True])
@pytest.mark.parametrize("name", ASKED)
def test_generation_prompts_open_thoughts_where_released_templates_do(name: str, thinking: bool, empty: bool) -> None:
    messages, ends = ASKED[name]
    dialogue = Dialogue([*messages, {"role": "assistant", "content": "Sunny.", "reasoning": "So." if thinking else ""}], thinking=thinking)
    prompt = chat_format.render(dialogue, prompt_only=True, empty_thought=empty)
    held = empty and not thinking and ends[False].endswith("model\n")
    assert prompt.endswith(ends[thinking] + (chat_format.EMPTY_THOUGHT if held else ""))
    assert prompt.count("<bos>") == 1
    if name != "a call without a result":
        whole = chat_format.render(dialogue, empty_thought=empty)
        assert whole.startswith(prompt)
        last = [piece for piece, written in chat_format.stretches(whole) if written][-1]
        assert last == whole[len(prompt) :].removesuffix("\n")


def test_a_dialogue_that_does_not_begin_with_its_prompt_is_refused() -> None:
    """Behind a new question the template drops the thought that the prompt shows."""
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "reasoning": "c"}, {"role": "user", "content": "d"}]
    with pytest.raises(ValueError, match="does not begin with the prompt"):
        chat_format.render(Dialogue(messages), empty_thought=True)


def test_thoughts_of_past_answers_are_left_out() -> None:
    def said(content: str) -> str:
        messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": content}, {"role": "user", "content": "b"}]
        return chat_format.render(Dialogue([*messages, {"role": "assistant", "content": ""}]), prompt_only=True).split("model\n")[1]

    for content in ("x<|channel>thought\ny\n<channel|>", "<|channel>thought\ny<channel|>x", "x<|channel>thought\ny", " x<channel|>"):
        assert said(content) == "x<turn|>\n<|turn>user\nb<turn|>\n<|turn>"


def test_a_dialogue_is_asked_once_for_each_message_of_the_model() -> None:
    rng = random.Random(0)
    assert [len(one.messages) for one in chat_format.asked(dialogues.tool_chat(rng, calls=2))] == [2, 5]
    assert len(chat_format.asked(dialogues.chat(rng, turns=3))) == 3
    assert len(chat_format.asked(dialogues.chat(rng, turns=3, thinking=True))) == 1, "templates drop the thoughts of earlier turns"
    assert all(one.messages[-1]["reasoning"] for one in chat_format.asked(dialogues.tool_chat(rng, thinking=True)))


@pytest.mark.parametrize("thinking", [False, True])
@pytest.mark.parametrize("name", families.TINY)
def test_a_final_message_is_continued(name: str, thinking: bool) -> None:
    """As transformers renders ``continue_final_message``."""
    from transformers import AutoTokenizer

    given = AutoTokenizer.from_pretrained(checkpoints.SHIPPED / name)
    messages = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "The ruler"}]
    text = given.apply_chat_template(messages, tokenize=False, continue_final_message=True, enable_thinking=thinking)
    assert text.endswith("Who?<turn|>\n<|turn>model\nThe ruler")


def test_template_is_the_shipped_one() -> None:
    for name in families.TINY:
        assert (checkpoints.SHIPPED / name / "chat_template.jinja").read_text() == chat_format.template_of(name)
    assert world.passage(random.Random(0))
