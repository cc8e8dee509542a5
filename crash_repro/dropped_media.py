"""Media of system and tool messages are dropped with status 200, and a text that names <|image|> takes an image's place. Needs no GPU."""

import asyncio
import sys
from typing import Any

import case  # type: ignore[import-not-found]
import scripted_server  # type: ignore[import-not-found]
import tool_answers  # type: ignore[import-not-found]

TEMPLATE = """{{ bos_token }}{%- for message in messages -%}<|turn>{{ message['role'] }}
{% for part in message['content'] -%}
{%- if part is string -%}{{ part }}{%- elif part['type'] == 'text' -%}{{ part['text'] }}
{%- elif part['type'] == 'image' and message['role'] == 'user' -%}<|image|>{%- endif -%}
{%- endfor -%}<turn|>
{% endfor %}<|turn>model
"""
"""As released templates do: images are shown in a user's message, none in the system's, and in older templates none in a tool's."""
IMAGE = {"type": "image_url", "image_url": {"url": "data:;base64,AAAA"}}
CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}],
}
GO = {"role": "user", "content": "Go on"}
CONVERSATIONS: dict[str, list[Any]] = {
    "an image of a user": [{"role": "user", "content": [IMAGE]}],
    "an image of the system": [{"role": "system", "content": [IMAGE]}, GO],
    "an image of a tool": [GO, CALL, {"role": "tool", "tool_call_id": "c", "content": [IMAGE]}],
    "an image of a file id": [GO],
    "a text that names the marker": [{"role": "user", "content": [{"type": "text", "text": "What is <|image|>?"}, IMAGE]}],
}
EXPECTED = {
    "an image of a user": "1 place, 1 image",
    "an image of the system": 400,
    "an image of a tool": 400,
    "an image of a file id": 400,
    "a text that names the marker": "1 place, 1 image",
}


def main() -> int:
    """What reaches the engine of each conversation: places in the prompt and images, or the status."""
    tool_answers.load()
    server = scripted_server.Endpoints(TEMPLATE)
    seen = {name: reached(server, name, messages) for name, messages in CONVERSATIONS.items()}
    return int(case.verdict(EXPECTED, seen))


def reached(server: Any, name: str, messages: list[Any]) -> Any:
    from sglang.srt.entrypoints.anthropic.protocol import AnthropicMessagesRequest
    from sglang.srt.entrypoints.openai.protocol import ChatCompletionRequest

    server.engine.script, server.engine.request = "Yes.", None
    if name == "an image of a file id":
        content = [{"type": "image", "source": {"type": "file", "file_id": "f"}}, {"type": "text", "text": "What is it?"}]
        asked: Any = AnthropicMessagesRequest(model="tiny", max_tokens=9, messages=[{"role": "user", "content": content}])  # type: ignore[list-item]
        answer = asyncio.run(server.messages.handle_messages(asked, None))
    else:
        answer = asyncio.run(server.chat.handle_request(ChatCompletionRequest(model="tiny", messages=messages), None))
    request = server.engine.request
    if request is None:
        return answer.status_code
    prompt = request.text or server.engine.tokenizer.decode(request.input_ids)
    return f"{prompt.count('<|image|>')} place, {len(request.image_data or ())} image"


if __name__ == "__main__":
    sys.exit(main())
