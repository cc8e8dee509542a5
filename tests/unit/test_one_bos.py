"""One <bos> in front of every prompt: the tokenizers as SGLang loads them, and the prompts of every endpoint."""

import copy
import pickle
from typing import Any

import pytest
import scripted_server  # type: ignore[import-not-found]

from sglang_gemma4.patches import load
from sglang_gemma4.serving import one_bos
from sglang_gemma4.tiny import checkpoints, families, tokenizer
from tests.harness import applied
from tests.harness.child import InChild

BOS = families.BOS
PATCH = load("one_bos")
CALL = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
CHATS: dict[str, list[dict[str, Any]]] = {
    "a question": [{"role": "user", "content": "Who?"}],
    "a system prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who?"}],
    "a client's <bos>": [{"role": "user", "content": "<bos>Who?"}],
    "a tool's result": [
        {"role": "user", "content": "Who?"},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "1", "content": "sun"},
    ],
}
TEXTS = {"hi": "hi", "<bos>hi": "hi", "<bos><bos>hi": "<bos>hi", "": "", "<bos>": "", " <bos>hi": " <bos>hi", "hi<bos>": "hi<bos>"}
"""What a client sends, and what stands behind the first <bos>."""


def loaded(way: str, name: str = "tiny-e2b") -> Any:
    """The tokenizer as SGLang loads it, for a text-only model or with a processor."""
    from sglang.srt.utils import hf_transformers

    folder = str(checkpoints.SHIPPED / name)
    if way == "text-only":
        return hf_transformers.get_tokenizer(folder)
    return hf_transformers.get_tokenizer_from_processor(hf_transformers.get_processor(folder))


@pytest.mark.parametrize("name", families.TINY)
def test_a_shipped_tokenizer_adds_nothing_as_the_released_ones(name: str) -> None:
    from transformers import AutoTokenizer, GemmaTokenizer

    given, raw = AutoTokenizer.from_pretrained(checkpoints.SHIPPED / name), tokenizer.load_raw(checkpoints.SHIPPED / name)
    assert isinstance(given, GemmaTokenizer)
    for text in [*tokenizer.corpus(3, 20), "héllo ☃ 日本 12 {a:b}\n\n  x", ""]:
        assert given(text)["input_ids"] == raw.encode(text).ids == raw.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("way", ["text-only", "with a processor"])
def test_a_text_has_one_bos(way: str) -> None:
    given, plain = loaded(way), tokenizer.load_raw(checkpoints.SHIPPED / "tiny-e2b")
    assert one_bos.begin_texts(given) is None
    want = [[BOS, *plain.encode(rest).ids] for rest in TEXTS.values()]
    assert given(list(TEXTS))["input_ids"] == want
    assert [given.encode(text) for text in TEXTS] == want
    assert [given(text=text, return_tensors="pt").input_ids[0].tolist() for text in TEXTS] == want
    assert [given.encode(text, add_special_tokens=False) for text in TEXTS] == [plain.encode(text).ids for text in TEXTS]
    chat: list[dict[str, str]] = [{"role": "user", "content": "Who?"}]
    ids = given.apply_chat_template(chat, tokenize=True, add_generation_prompt=True, return_dict=False)
    assert ids == given.encode(given.apply_chat_template(chat, tokenize=False, add_generation_prompt=True))
    assert ids.count(BOS) == 1


def test_a_copy_encodes_by_itself() -> None:
    """SGLang copies the processor, with its tokenizer, for each thread."""
    given = loaded("with a processor")
    one_bos.begin_texts(given)
    for copied in (copy.deepcopy(given), pickle.loads(pickle.dumps(given))):
        assert copied._encode_plus.tokenizer is copied
        assert copied("<bos>hi").input_ids == given("hi").input_ids
        assert copied.backend_tokenizer is not given.backend_tokenizer


def test_words_of_a_split_text_stay() -> None:
    given = loaded("with a processor")
    one_bos.begin_texts(given)
    words = ["<bos>", "hi", "<bos>"]
    assert given(words, is_split_into_words=True).input_ids.count(BOS) == 3


def test_stock_adds_none_for_a_processor_s_tokenizer_and_two_for_a_text_only_model_s() -> None:
    seen = {way: [loaded(way)(text).input_ids[:2].count(BOS) for text in ("hi", "<bos>hi")] for way in ("text-only", "with a processor")}
    assert seen == {"text-only": [1, 2], "with a processor": [0, 1]}, "SGLang has repaired it: see whether one_bos can go"


@pytest.fixture(scope="module", autouse=True)
def sglang_imported() -> None:
    applied.import_entry_points(applied.SERVING)


@pytest.mark.parametrize("begun", [True, False])
@pytest.mark.parametrize("multimodal", [True, False])
def test_every_endpoint_s_prompt_has_one_bos(multimodal: bool, begun: bool, in_child: InChild) -> None:
    """A chat goes to the engine as ids, with and without the patch; a raw text, and with a processor a response's prompt, is encoded there.

    Without the patch a released tokenizer gives chats one and raw texts none.
    """

    class Engine(scripted_server.ScriptedEngine):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model_config.is_multimodal = multimodal
            assert not begun or one_bos.begin_texts(self.tokenizer) is None

    def child() -> Any:
        scripted_server.ScriptedEngine = Engine
        applied.apply([PATCH], str(int(begun)))
        server, wrong = scripted_server.Endpoints(), []

        def look(name: str, as_ids: bool = True) -> None:
            sent = server.engine.request
            ids = sent.input_ids if sent.text is None else server.engine.tokenizer(sent.text)["input_ids"]
            if (ids[0], ids[1] == BOS, sent.text is None) != (BOS, False, as_ids):
                wrong.append(name)

        for name, messages in CHATS.items():
            for endpoint in ("chat", "responses", "messages"):
                for thinking in (False, True):
                    server.ask(endpoint, "Rome.", messages=messages, thinking=thinking)
                    look(f"{name}, {endpoint}, {thinking}", as_ids=not (multimodal and endpoint == "responses"))
        goes_on = [*CHATS["a question"], {"role": "assistant", "content": "It is"}]
        server.ask("chat", "Rome.", messages=goes_on, continue_final_message=True)
        look("an answer that goes on")
        for prompt in ("Who?", "<bos>Who?"):
            server.ask("completions", "Rome.", prompt=prompt)
            look(prompt, as_ids=False)
        return wrong

    assert in_child(child) == ([] if begun else ["Who?"])
