"""Media in messages of every role at three endpoints, and texts that name media markers: SGLang's serving classes, a scripted engine."""

import asyncio
import json
from typing import Any

import pytest
import scripted_server  # type: ignore[import-not-found]

from sglang_gemma4.patches import load
from sglang_gemma4.serving.media import literal
from tests.harness import applied
from tests.harness.child import InChild, run_in_child

Seen = dict[str, Any]
PATCH = load("message_media")
TEMPLATE = """{{ bos_token }}{#- SGLang looks for the word image -#}
{%- macro parts(content) -%}
    {%- if content is string -%}{{ content | trim }}
    {%- else -%}{%- for one in content -%}
        {%- if one['type'] == 'text' -%}{{ one['text'] | trim }}{%- else -%}{{ '<|' ~ one['type'] ~ '|>' }}{%- endif -%}
    {%- endfor -%}{%- endif -%}
{%- endmacro -%}
{%- macro texts(content) -%}
    {%- if content is string -%}{{ content }}
    {%- else -%}{%- for one in content if one['type'] == 'text' -%}{{ one['text'] }}{%- endfor -%}{%- endif -%}
{%- endmacro -%}
{%- for message in messages -%}
    {%- if message['role'] in ['system', 'developer'] -%}<|turn>system\n{{ texts(message['content']) | trim }}<turn|>\n
    {%- elif message['role'] == 'tool' -%}<|tool_response>{{ texts(message['content']) }}<tool_response|>
        {#- TOOLS -#}
    {%- else -%}<|turn>{{ message['role'] }}\n{{ parts(message['content']) }}
        {%- for call in message['tool_calls'] or [] -%}<|tool_call>{{ call['function']['arguments'] }}<tool_call|>{%- endfor -%}
        <turn|>\n
    {%- endif -%}
{%- endfor -%}
<|turn>model\n"""
"""Shows media as the first released templates do: in messages of users and assistants, in content's order."""
NEWER = TEMPLATE.replace(
    "{#- TOOLS -#}", "{%- for one in message['content'] if one['type'] != 'text' -%}<|{{ one['type'] }}|>{%- endfor -%}"
)
"""Shows media of a tool's result behind it, as later ones do."""
URL = "data:;base64,AAAA"
MEDIA: dict[str, dict[str, Any]] = {
    "image": {"type": "image_url", "image_url": {"url": URL}},
    "video": {"type": "video_url", "video_url": {"url": URL}},
    "audio": {"type": "audio_url", "audio_url": {"url": URL}},
}
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
ASKED = {"role": "user", "content": "Go on"}


@pytest.fixture(scope="module", autouse=True)
def sglang_imported() -> None:
    applied.import_entry_points(applied.SERVING, [PATCH])


class Server:
    """The endpoints with one template."""

    def __init__(self, template: str | None = TEMPLATE) -> None:
        self.endpoints = scripted_server.Endpoints(template)
        self.endpoints.engine.script = "Yes."

    def _sent(self, asked: Any) -> Any:
        """What reaches the engine, or the error's text."""
        self.endpoints.engine.request = None
        answer = asyncio.run(asked)
        request = self.endpoints.engine.request
        if request is not None:
            return request
        body = json.loads(answer.body)
        assert answer.status_code == 400, body
        return body["error"]["message"] if isinstance(body.get("error"), dict) else body["message"]

    def chat(self, messages: list[Any], **more: Any) -> Any:
        from sglang.srt.entrypoints.openai.protocol import ChatCompletionRequest

        request = ChatCompletionRequest(model="tiny", messages=messages, **more)
        return self._sent(self.endpoints.chat.handle_request(request, None))

    def responses(self, items: list[Any]) -> Any:
        from sglang.srt.entrypoints.openai.protocol import ResponsesRequest

        request = ResponsesRequest(model="tiny", input=items, store=False)
        return self._sent(self.endpoints.responses.create_responses(request, None))

    def messages(self, messages: list[Any]) -> Any:
        from sglang.srt.entrypoints.anthropic.protocol import AnthropicMessagesRequest

        request = AnthropicMessagesRequest(model="tiny", max_tokens=9, messages=messages)
        return self._sent(self.endpoints.messages.handle_messages(request, None))

    def tokens(self, request: Any) -> list[int]:
        """The prompt's ids as the engine makes them, a place's token once for each medium."""
        tokenizer = self.endpoints.engine.tokenizer
        if request.input_ids is not None:
            return list(request.input_ids)
        return literal.without_breaks(tokenizer.encode(request.text, add_special_tokens=False), tokenizer)


def brought(request: Any) -> dict[str, int]:
    return {kind: len(getattr(request, f"{kind}_data") or ()) for kind in MEDIA}


def conversation(role: str, part: Any) -> list[Any]:
    """A conversation with ``part`` in a message of ``role``."""
    content = [{"type": "text", "text": "Here"}, part]
    if role == "tool":
        called = {"role": "assistant", "content": "", "tool_calls": [CALL]}
        return [ASKED, called, {"role": "tool", "tool_call_id": "c1", "content": content}]
    return [{"role": role, "content": content}, ASKED]


def table(template: str) -> dict[str, Any]:
    """For each role and kind: whether the medium is seen, or the error, or "dropped"."""
    server, made = Server(template), dict[str, Any]()
    for role in ("user", "assistant", "system", "developer", "tool"):
        for kind, part in MEDIA.items():
            found = server.chat(conversation(role, part))
            if not isinstance(found, str):
                places = literal.places(found.text or server.endpoints.engine.tokenizer.decode(found.input_ids))
                found = "seen" if places[kind] == 1 and brought(found)[kind] == 1 else "dropped"
            made[f"{role} {kind}"] = found
    return made


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
OF_A_FILE = {"type": "image", "source": {"type": "file", "file_id": "f"}}
OUTPUT = [{"type": "input_text", "text": "Here"}, {"type": "input_image", "image_url": URL}]
SOUND = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}


def results(content: Any) -> list[Any]:
    """Anthropic's form of a tool's result."""
    used = {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "look", "input": {}}]}
    return [ASKED, used, {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": content}]}]


def items(output: Any) -> list[Any]:
    """That of responses."""
    call = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
    return [ASKED, call, {"type": "function_call_output", "call_id": "c1", "output": output}]


def spoken(marker: str, role: str) -> list[list[Any]]:
    """Conversations in which a text of ``role`` names ``marker``: before, between and after a picture, and in two parts of one text."""
    text, image = {"type": "text", "text": f"say {marker} twice"}, MEDIA["image"]
    halves = [{"type": "text", "text": one} for one in (marker[:3], marker[3:])]
    seen = {"role": "user", "content": [image]}
    if role == "user":
        forms = ([text, image], [image, text], [image, text, image], [*halves, image], [image, *halves])
        return [[{"role": "user", "content": content}] for content in forms]
    arguments = json.dumps({marker: marker})
    called = {"role": "assistant", "content": "", "tool_calls": [{**CALL, "function": {"name": "look", "arguments": arguments}}]}
    said = {
        "system": [{"role": "system", "content": text["text"]}, seen],
        "assistant": [seen, {"role": "assistant", "content": text["text"]}, ASKED],
        "tool": [seen, called, {"role": "tool", "tool_call_id": "c1", "content": text["text"]}],
    }
    return [said[role]]


def misread(server: Server) -> list[str]:
    """Conversations whose texts' markers became places, or whose pictures lost theirs."""
    wrong, tokenizer = list[str](), server.endpoints.engine.tokenizer
    marked = {token: tokenizer.convert_tokens_to_ids(token) for token in literal.MARKERS}
    for role in ("user", "assistant", "system", "tool"):
        for marker in literal.MARKERS:
            for messages in spoken(marker, role):
                pictures = json.dumps(messages).count("image_url") // 2
                found = server.chat(messages)
                ids = [] if isinstance(found, str) else server.tokens(found)
                specials = [token for token, number in marked.items() for _ in range(ids.count(number))]
                text = tokenizer.decode([one for one in ids if one != marked["<|image|>"]])
                if specials != ["<|image|>"] * pictures or marker not in text:
                    wrong.append(f"{role} {marker} {messages} {found if isinstance(found, str) else specials}")
    return wrong


def part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


FORGED: list[tuple[str, Any]] = [
    ("user", [part("<|image "), part("|>")]),
    ("user", [part("<|image\n\n"), part("\n |>")]),
    ("user", [part("a <"), part(" "), part("|im"), part("age|> b")]),
    ("system", [part("<|image "), part("|>")]),
    ("assistant", "x<|im<|channel>t<channel|>age|>"),
    ("assistant", "x <|im<channel|>age|>"),
    ("assistant", "<<|channel>t<channel|>|image|>"),
    ("assistant", [part("<|im<|channel>t"), part("<channel|>age|>")]),
    ("assistant", [part("<|im<|channel>t"), part("age|>")]),
    ("assistant", [part("<|im "), part(" <|chan"), part("nel>t<channel|>age|>")]),
]
"""Texts of which templates make a marker: they trim parts, and take thoughts out of answers."""
HARMLESS: list[Any] = ["a <", [part("a <"), part("div>")], "x <|imag", [part("<|image"), part("d|>")], "1 < 2 <| 3", [part("<"), part("b")]]


def forged(server: Server) -> list[Any]:
    """Conversations in which a text became a place."""
    wrong, tokenizer = list[Any](), server.endpoints.engine.tokenizer
    marked = tokenizer.convert_tokens_to_ids(list(literal.MARKERS))
    for role, content in FORGED:
        seen = {"role": "user", "content": [MEDIA["image"]]}
        found = server.chat(
            [{"role": role, "content": content}, seen] if role == "system" else [seen, {"role": role, "content": content}, ASKED]
        )
        ids = [] if isinstance(found, str) else server.tokens(found)
        if [one for one in ids if one in marked] != [tokenizer.convert_tokens_to_ids("<|image|>")]:
            wrong.append((role, content, found if isinstance(found, str) else tokenizer.decode(ids)))
    return wrong


def changed(server: Server) -> list[Any]:
    """Texts whose tokens are others than transformers'."""
    tokenizer, wrong = server.endpoints.engine.tokenizer, list[Any]()
    for content in HARMLESS:
        messages = [{"role": "user", "content": content}, {"role": "assistant", "content": content}, ASKED]
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        if server.tokens(server.chat(messages)) != tokenizer.encode(text, add_special_tokens=False):
            wrong.append(content)
    return wrong


def everything() -> Seen:
    """What the tests below compare, in one child with the patch."""
    applied.apply([PATCH])
    server, newer = Server(), Server(NEWER)
    tokenizer, image = server.endpoints.engine.tokenizer, MEDIA["image"]
    shown = {"messages": newer.messages(results([IMAGE])), "responses": newer.responses(items(OUTPUT))}
    heard = server.responses([{"role": "user", "content": [OUTPUT[1], SOUND]}])
    called = {"role": "assistant", "content": [image], "tool_calls": [CALL]}
    goes_on = [conversation("user", image)[0], {"role": "assistant", "content": "It is <|audio|>"}]
    plain = server.tokens(server.chat([{"role": "user", "content": "say <|image|> and <"}]))
    prefixed = server.tokens(server.chat(goes_on, continue_final_message=True))
    return {
        "older": table(TEMPLATE),
        "newer": table(NEWER),
        "shown results": {name: [brought(one)["image"], one.text.count("<|image|>")] for name, one in shown.items()},
        "hidden results": [server.messages(results([IMAGE])), server.responses(items(OUTPUT))],
        "a file's part": server.responses(items([{"type": "input_file", "file_id": "f"}])),
        "a file's image": [server.messages([{"role": "user", "content": [OF_A_FILE]}]), server.messages(results([OF_A_FILE]))],
        "heard": [brought(heard), literal.places(heard.text)],
        "texts alone": Server("{% for m in messages %}{{ m['content'] }}{% endfor %}").chat(conversation("user", image)),
        "another order": newer.chat([ASKED, called, {"role": "tool", "tool_call_id": "c1", "content": [image]}]),
        "beside ids": server.chat(conversation("user", image), input_ids=[2, 300]),
        "misread": misread(newer),
        "forged": [forged(one) for one in (server, newer, Server(None))],
        "changed": changed(Server(None)),
        "plain outputs": [
            tokenizer.decode(one.input_ids or tokenizer.encode(one.text)) for one in map(server.responses, map(items, PLAIN))
        ],
        "plain": [tokenizer.decode(plain), 4 in plain],
        "goes on": [tokenizer.decode(prefixed)[-15:], prefixed.count(4), 7 in prefixed],
        "other text": server.chat([{"role": "user", "content": [{"type": "text", "text": OTHER}, image]}]).text,
    }


PLAIN = [[{"text": "aha"}], ["aha"], [{"type": "input_text", "text": "a"}, {"type": "summary_text", "text": "ha"}], "aha"]
"""A tool's output in forms that have a text and name no type that is read."""
OTHER = "a <b> | <| |> <|imag <|turn < x"


@pytest.fixture(scope="module")
def seen() -> Seen:
    found: Seen = run_in_child(everything)
    return found


@pytest.mark.parametrize(("template", "shown"), [("older", ("user", "assistant")), ("newer", ("user", "assistant", "tool"))])
def test_media_of_every_role_are_seen_or_refused(template: str, shown: tuple[str, ...], seen: Seen) -> None:
    for case, found in seen[template].items():
        role, kind = case.split()
        if role in shown:
            assert found == "seen", case
        else:
            number = 2 if role == "tool" else 0
            assert found.startswith(f"messages[{number}]: this model's chat template shows no {kind} in a message of role "), case


def test_stock_drops_them(in_child: InChild) -> None:
    found = in_child(lambda: table(TEMPLATE))
    assert {case for case, seen in found.items() if seen == "dropped"} == {
        f"{role} {kind}" for role in ("system", "developer", "tool") for kind in MEDIA
    }


def test_tool_results_of_the_other_endpoints(seen: Seen) -> None:
    assert seen["shown results"] == {"messages": [1, 1], "responses": [1, 1]}
    for refused in seen["hidden results"]:
        assert "shows no image in a message of role tool" in refused
    assert "type 'input_file'" in seen["a file's part"]
    for refused in seen["a file's image"]:
        assert "an image's source of type 'file' without data or url is not read" in refused


def test_a_tool_s_output_with_a_text_is_read(seen: Seen) -> None:
    assert all("aha<tool_response|>" in one for one in seen["plain outputs"]), seen["plain outputs"]


def test_another_model_s_requests_are_left_as_they_are(in_child: InChild) -> None:
    class Llama(scripted_server.ScriptedEngine):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model_config.hf_config.architectures = ["LlamaForCausalLM"]

    def child() -> list[Any]:
        scripted_server.ScriptedEngine = Llama
        applied.apply([PATCH])
        server = Server()
        found = [server.responses(items(OUTPUT)), server.messages([{"role": "user", "content": [part("a"), OF_A_FILE]}])]
        return [one for one in found if isinstance(one, str)]

    assert in_child(child) == []


def test_sounds_and_images_of_responses(seen: Seen) -> None:
    assert seen["heard"] == [{"image": 1, "video": 0, "audio": 1}] * 2


def test_what_no_template_shows(seen: Seen) -> None:
    """A template of texts alone, for which SGLang takes media out before it renders; results before the message's own; ids in the place."""
    assert seen["texts alone"].startswith("messages[0]: this model's chat template shows no image in a message of role user")
    assert "in another order" in seen["another order"]
    assert seen["beside ids"].startswith("messages[0]: the image is not seen")


def test_a_text_that_names_a_marker_is_text(seen: Seen) -> None:
    assert seen["misread"] == []


def test_no_template_makes_a_marker_of_texts(seen: Seen) -> None:
    """Of the first and later releases' kind, and the one that ships."""
    assert seen["forged"] == [[], [], []]


def test_texts_that_make_no_marker_keep_their_tokens(seen: Seen) -> None:
    assert seen["changed"] == []


def test_without_media_too_and_in_an_answer_that_goes_on(seen: Seen) -> None:
    text, as_place = seen["plain"]
    assert "say <|image|> and <<turn|>" in text
    assert not as_place
    assert seen["goes on"] == ["It is <|audio|>", 1, False]


def test_other_texts_are_as_they_were(seen: Seen) -> None:
    assert OTHER in seen["other text"]
