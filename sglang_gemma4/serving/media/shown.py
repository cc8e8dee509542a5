"""Checks that a chat template shows all media of a conversation; otherwise the request is refused with the message's number and role.

All released templates show media in user and assistant messages, none in the system message, and newer ones also in tool results. So the
rendered prompt is checked: it must have a marker for each image, video and audio.
"""

from collections.abc import Callable
from typing import Any

from sglang_gemma4.serving.client_errors import ClientError
from sglang_gemma4.serving.media import literal, served

PARTS = {"image_url": "image", "input_image": "image", "video_url": "video", "audio_url": "audio", "input_audio": "audio"}
"""Modality by the type of a content part."""
REMEDY = "send it in a user message"


def mark(_result: None, server: Any, *_args: Any, **_kwargs: Any) -> None:
    """After ``OpenAIServingChat.__init__``: mark this process, so that a server without a processor refuses media in tool outputs too."""
    if _serves_gemma4(server):
        served.mark()


def render(original: Callable[..., Any], server: Any, messages: Any, *, tools: Any, template_kwargs: Any, **kwargs: Any) -> Any:
    """Around ``OpenAIServingChat._render_and_encode_chat_template``: texts cannot spell a media marker."""
    if not _serves_gemma4(server):
        return original(server, messages, tools=tools, template_kwargs=template_kwargs, **kwargs)
    return original(server, literal.inert(messages), tools=literal.inert(tools), template_kwargs=literal.inert(template_kwargs), **kwargs)


def append_prefix(original: Callable[..., Any], server: Any, prompt_ids: Any, assistant_prefix: str) -> Any:
    """Around ``OpenAIServingChat._append_assistant_prefix_to_prompt_ids``: the answer to continue cannot spell a media marker."""
    return original(server, prompt_ids, literal.inert(assistant_prefix) if _serves_gemma4(server) else assistant_prefix)


def apply_template(original: Callable[..., Any], server: Any, request: Any, tools: Any, is_multimodal: bool) -> Any:
    """Around ``OpenAIServingChat._apply_jinja_template``: compare the rendered markers with the media, and remove breaks from the ids.

    Raises:
        ClientError: the template leaves media out, or shows media in another order than they are loaded.
    """
    result = original(server, request, tools, is_multimodal)
    if not _serves_gemma4(server) or not isinstance(result.prompt_ids, list):
        return result
    sent = [kind for message in request.messages for kind in _kinds(message)]
    if sent and is_multimodal:
        _judge_order(request.messages)
        if literal.places(result.prompt) != {kind: sent.count(kind) for kind in ("image", "video", "audio")}:
            raise ClientError(_reason(original, server, request, tools))
    result.prompt_ids = literal.without_breaks(result.prompt_ids, server.tokenizer_manager.tokenizer)
    return result


def engine_prompt(found: Any, _server: Any, processed: Any, _is_multimodal: bool) -> Any:
    """After ``OpenAIServingChat._engine_prompt``: send a prompt with a break and without media as ids, in which the marker is text."""
    kind, value = found
    if kind == "text" and literal.BREAK in value and not (processed.image_data or processed.video_data or processed.audio_data):
        return "input_ids", processed.prompt_ids
    return found


def process(original: Callable[..., Any], processor: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Around ``Gemma4SGLangProcessor.process_mm_data``: remove the tokens of breaks from the prompt's ids."""
    import torch

    made, text = original(processor, *args, **kwargs), kwargs.get("input_text", args[0] if args else "")
    if isinstance(text, str) and literal.BREAK in text:
        ids = literal.without_breaks(made["input_ids"].flatten().tolist(), processor._tokenizer)
        made["input_ids"] = torch.tensor([ids], dtype=made["input_ids"].dtype)
    return made


def judge_ids(_server: Any, request: Any, *_args: Any, **_kwargs: Any) -> None:
    """Before ``OpenAIServingChat._process_messages``, which ignores the messages if a request has ``input_ids``.

    Raises:
        ClientError: the request has ``input_ids`` and media in its messages.
    """
    if request.input_ids is None or not _serves_gemma4(_server):
        return
    for number, message in enumerate(request.messages):
        for kind in _kinds(message):
            raise ClientError(f"messages[{number}]: the {kind} is not seen, as input_ids take the messages' place; leave input_ids out")


def tool_output(original: Callable[..., Any], output: Any) -> Any:
    """Around ``OpenAIServingResponses._flatten_tool_output``, which keeps only texts: keep media too.

    Raises:
        ClientError: a part is neither text nor media.
    """
    if not isinstance(output, list) or not served.is_gemma4():
        return original(output)
    made = [_output_part(part) for part in output]
    return original(made) if all(part["type"] == "text" for part in made) else made


def _output_part(part: Any) -> dict[str, Any]:
    """A part of a tool's output in the form of chat completions. A part with a text is text, whatever its type, as in stock SGLang."""
    from sglang.srt.entrypoints.openai.serving_responses import OpenAIServingResponses

    normal = OpenAIServingResponses._normalize_response_content_part_for_chat(part)
    if isinstance(normal, str):
        return {"type": "text", "text": normal}
    kind = normal.get("type") if isinstance(normal, dict) else type(part).__name__
    if kind in PARTS:
        return dict(normal)
    if isinstance(normal, dict) and isinstance(normal.get("text"), str):
        return {"type": "text", "text": normal["text"]}
    raise ClientError(f"input: a tool's output has a part of type {kind!r}, which is not read; send text or an input_image")


def judge_blocks(server: Any, request: Any, *_args: Any, **_kwargs: Any) -> None:
    """Before ``AnthropicServing._convert_to_chat_completion_request``, which drops images that it cannot read.

    Raises:
        ClientError: an image has no data or address, or is in a part of a message of which only texts are read.
    """
    if not _serves_gemma4(server.openai_serving_chat):
        return
    for number, message in enumerate(request.messages):
        blocks = message.content if isinstance(message.content, list) else []
        for block in blocks:
            where = f"messages[{number}].content: "
            if block.type == "image":
                _judge_source(block.source, where)
            elif block.type == "tool_result":
                inner = block.content if isinstance(block.content, list) else []
                for one in inner:
                    if one.type == "image" and message.role != "user":
                        raise ClientError(f"{where}an image in a tool_result of a message of role {message.role} is not read; {REMEDY}")
                    if one.type == "image":
                        _judge_source(one.source, f"{where}tool_result: ")
            elif block.type == "search_result":
                for part in block.content or ():
                    if part.get("type") != "text":
                        raise ClientError(f"{where}search_result: a part of type {part.get('type')!r} is not read; send text")


def _judge_source(source: Any, where: str) -> None:
    found = source if isinstance(source, dict) else {}
    if found.get("type") == "base64" and found.get("data"):
        return
    if found.get("type") != "base64" and found.get("url"):
        return
    raise ClientError(
        f"{where}an image's source of type {found.get('type')!r} without data or url is not read; send type base64 with data, or type url"
    )


def _serves_gemma4(server: Any) -> bool:
    from sglang_gemma4.models.config_files import named_gemma4

    return named_gemma4(server.tokenizer_manager.model_config.hf_config)


def _kinds(message: Any) -> list[str]:
    """The modalities of a message's media, in order."""
    parts = message.content if isinstance(message.content, list) else []
    return [PARTS[part.type] for part in parts if part.type in PARTS]


def _judge_order(messages: Any) -> None:
    """Refuse media in both an assistant message with tool calls and its results.

    Templates put a call's results before the message's own content, but media are loaded in the order of messages.

    Raises:
        ClientError: both have media.
    """
    for number, message in enumerate(messages):
        if not (getattr(message, "tool_calls", None) and _kinds(message)):
            continue
        for later, result in enumerate(messages[number + 1 :], number + 1):
            if result.role != "tool":
                break
            if _kinds(result):
                raise ClientError(
                    f"messages[{number}] and messages[{later}]: media in an assistant message with tool calls and in their results are "
                    "shown in another order than they are sent; send one of them in a user message"
                )


def _reason(original: Callable[..., Any], server: Any, request: Any, tools: Any) -> str:
    """The error that names the message whose media the template leaves out; each message is rendered without other media."""
    for number, message in enumerate(request.messages):
        kinds = _kinds(message)
        if not kinds:
            continue
        others = [one if at == number else _texts_of(one) for at, one in enumerate(request.messages)]
        seen = literal.places(original(server, request.model_copy(update={"messages": others}), tools, True).prompt)
        lost = [kind for kind in kinds if seen[kind] < kinds.count(kind)]
        if lost:
            return (
                f"messages[{number}]: this model's chat template shows no {lost[0]} in a message of role {message.role}; {REMEDY}, or "
                "start the server with a --chat-template that shows it"
            )
    return f"messages: this model's chat template does not show all of their media; {REMEDY}"


def _texts_of(message: Any) -> Any:
    """A message without its media."""
    if not _kinds(message):
        return message
    return message.model_copy(update={"content": [part for part in message.content if part.type not in PARTS]})
