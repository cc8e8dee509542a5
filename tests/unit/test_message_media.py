"""Media in messages of every role at three endpoints, and texts that name media markers: SGLang's serving classes, a scripted engine."""

import asyncio
import importlib
import json
from collections.abc import Callable
from typing import Any

import pytest
import scripted_server  # type: ignore[import-not-found]

from sglang_gemma4 import hooks, patching
from sglang_gemma4.patches import load
from sglang_gemma4.serving.media import literal

InChild = Callable[[Callable[[], Any]], Any]
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
    """What the patch changes, once, not in every child."""
    for name in ("openai.serving_chat", "openai.serving_responses", "openai.serving_completions", "anthropic.serving"):
        importlib.import_module(f"sglang.srt.entrypoints.{name}")
    for hook in PATCH.hooks:
        hooks.target_of(hook)


class Server:
    """The endpoints with one template."""

    def __init__(self, template: str = TEMPLATE, switch: str = "1") -> None:
        patching.apply([PATCH], {PATCH.switch: switch, "SGLANG_GEMMA4_STRICT": "1"})
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


def table(template: str, switch: str = "1") -> dict[str, Any]:
    """For each role and kind: whether the medium is seen, or the error, or "dropped"."""
    server, made = Server(template, switch), dict[str, Any]()
    for role in ("user", "assistant", "system", "developer", "tool"):
        for kind, part in MEDIA.items():
            found = server.chat(conversation(role, part))
            if not isinstance(found, str):
                places = literal.places(found.text or server.endpoints.engine.tokenizer.decode(found.input_ids))
                found = "seen" if places[kind] == 1 and brought(found)[kind] == 1 else "dropped"
            made[f"{role} {kind}"] = found
    return made


@pytest.mark.parametrize(("template", "shown"), [(TEMPLATE, ("user", "assistant")), (NEWER, ("user", "assistant", "tool"))])
def test_media_of_every_role_are_seen_or_refused(template: str, shown: tuple[str, ...], in_child: InChild) -> None:
    for case, found in in_child(lambda: table(template)).items():
        role, kind = case.split()
        if role in shown:
            assert found == "seen", case
        else:
            number = 2 if role == "tool" else 0
            assert found.startswith(f"messages[{number}]: this model's chat template shows no {kind} in a message of role "), case


def test_stock_drops_them(in_child: InChild) -> None:
    found = in_child(lambda: table(TEMPLATE, "0"))
    assert {case for case, seen in found.items() if seen == "dropped"} == {
        f"{role} {kind}" for role in ("system", "developer", "tool") for kind in MEDIA
    }


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
OUTPUT = [{"type": "input_text", "text": "Here"}, {"type": "input_image", "image_url": URL}]


def test_tool_results_of_the_other_endpoints(in_child: InChild) -> None:
    def results(content: Any) -> list[Any]:
        used = {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "look", "input": {}}]}
        return [ASKED, used, {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": content}]}]

    def items(output: Any) -> list[Any]:
        call = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
        return [ASKED, call, {"type": "function_call_output", "call_id": "c1", "output": output}]

    def child() -> list[Any]:
        newer = Server(NEWER)
        seen = [newer.messages(results([IMAGE])), newer.responses(items(OUTPUT))]
        made: list[Any] = [(brought(one)["image"], one.text.count("<|image|>")) for one in seen]
        newer.endpoints.engine.tokenizer.chat_template = TEMPLATE
        made += [newer.messages(results([IMAGE])), newer.responses(items(OUTPUT))]
        made.append(newer.responses(items([{"type": "input_file", "file_id": "f"}])))
        of_a_file = {"type": "image", "source": {"type": "file", "file_id": "f"}}
        made += [newer.messages([{"role": "user", "content": [of_a_file]}]), newer.messages(results([of_a_file]))]
        return made

    made = in_child(child)
    assert made[:2] == [[1, 1], [1, 1]]
    for refused in made[2:4]:
        assert "shows no image in a message of role tool" in refused
    assert "type 'input_file'" in made[4]
    for refused in made[5:]:
        assert "an image's source of type 'file' without data or url is not read" in refused


def test_a_template_of_texts_alone(in_child: InChild) -> None:
    """SGLang takes the media out of the messages before it renders them."""
    said = in_child(lambda: Server("{% for m in messages %}{{ m['content'] }}{% endfor %}").chat(conversation("user", MEDIA["image"])))
    assert said.startswith("messages[0]: this model's chat template shows no image in a message of role user")


def test_media_in_an_order_that_is_not_theirs(in_child: InChild) -> None:
    """Templates show a call's results before the message's own pictures."""

    def child() -> Any:
        called = {"role": "assistant", "content": [MEDIA["image"]], "tool_calls": [CALL]}
        return Server(NEWER).chat([ASKED, called, {"role": "tool", "tool_call_id": "c1", "content": [MEDIA["image"]]}])

    assert "in another order" in in_child(child)


def test_media_beside_input_ids(in_child: InChild) -> None:
    said = in_child(lambda: Server().chat(conversation("user", MEDIA["image"]), input_ids=[2, 300]))
    assert said.startswith("messages[0]: the image is not seen")


def spoken(marker: str, role: str) -> list[list[Any]]:
    """Conversations in which a text of ``role`` names ``marker``: before, between and after a picture, and in two parts of one text."""
    text, image = {"type": "text", "text": f"say {marker} twice"}, MEDIA["image"]
    halves = [{"type": "text", "text": one} for one in (marker[:3], marker[3:])]
    seen = {"role": "user", "content": [image]}
    if role == "user":
        forms = ([text, image], [image, text], [image, text, image], [*halves, image], [image, *halves])
        return [[{"role": "user", "content": content}] for content in forms]
    called = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{**CALL, "function": {"name": "look", "arguments": json.dumps({marker: marker})}}],
    }
    said = {
        "system": [{"role": "system", "content": text["text"]}, seen],
        "assistant": [seen, {"role": "assistant", "content": text["text"]}, ASKED],
        "tool": [seen, called, {"role": "tool", "tool_call_id": "c1", "content": text["text"]}],
    }
    return [said[role]]


@pytest.mark.parametrize("role", ["user", "assistant", "system", "tool"])
def test_a_text_that_names_a_marker_is_text(role: str, in_child: InChild) -> None:
    def child() -> list[str]:
        server, wrong = Server(NEWER), list[str]()
        tokenizer = server.endpoints.engine.tokenizer
        marked = {token: tokenizer.convert_tokens_to_ids(token) for token in literal.MARKERS}
        for marker in literal.MARKERS:
            for messages in spoken(marker, role):
                pictures = json.dumps(messages).count("image_url") // 2
                found = server.chat(messages)
                ids = [] if isinstance(found, str) else server.tokens(found)
                specials = [token for token, number in marked.items() for _ in range(ids.count(number))]
                if specials != ["<|image|>"] * pictures or marker not in tokenizer.decode(
                    [one for one in ids if one != marked["<|image|>"]]
                ):
                    wrong.append(f"{marker} {messages} {found if isinstance(found, str) else specials}")
        return wrong

    assert in_child(child) == []


def test_without_media_too_and_in_an_answer_that_goes_on(in_child: InChild) -> None:
    def child() -> Any:
        server = Server()
        tokenizer = server.endpoints.engine.tokenizer
        plain = server.tokens(server.chat([{"role": "user", "content": "say <|image|> and <"}]))
        begun = [conversation("user", MEDIA["image"])[0], {"role": "assistant", "content": "It is <|audio|>"}]
        goes_on = server.tokens(server.chat(begun, continue_final_message=True))
        same = server.tokens(server.chat([{"role": "user", "content": "say a < b and <"}]))
        return [
            tokenizer.decode(plain),
            4 in plain,
            tokenizer.decode(goes_on)[-16:],
            goes_on.count(4),
            7 in goes_on,
            tokenizer.decode(same),
        ]

    plain, as_place, goes_on, places, as_sound, same = in_child(child)
    assert "say <|image|> and <<turn|>" in plain
    assert "say a < b and <<turn|>" in same
    assert not as_place
    assert (goes_on[-15:], places, as_sound) == ("It is <|audio|>", 1, False)


def test_tokens_of_other_texts_are_as_they_were(in_child: InChild) -> None:
    def child() -> bool:
        text = "a <b> | <| |> <|imag <|turn <\\ue0f4 x"
        with_patch = Server().chat([{"role": "user", "content": [{"type": "text", "text": text}, MEDIA["image"]]}])
        return bool(text in with_patch.text)

    assert in_child(child)
