"""Ollama's messages and tools in the form of chat completions."""

import json
from collections.abc import Mapping
from typing import Any

from sglang_gemma4.serving.value_kinds import one_of, refuse, shown

ROLE = one_of("system", "user", "assistant", "tool")


def of_chat(given: Any) -> list[dict[str, Any]]:
    """The messages of /api/chat. Fields that Ollama does not know, such as ``id``, are ignored.

    Raises:
        ValueError: a message does not have Ollama's form; the error names its place.
    """
    if given is None:
        return []
    if not isinstance(given, list):
        refuse("messages", given, "a list of messages")
    calls = _Calls(_given_ids(given))
    return [_message(f"messages[{number}]", message, calls) for number, message in enumerate(given)]


def of_prompt(prompt: str, system: str | None, images: Any) -> list[dict[str, Any]]:
    """The conversation for a prompt of /api/generate.

    Raises:
        ValueError: ``images`` is not a list of base64 texts.
    """
    begun = [{"role": "system", "content": system}] if system else []
    return [*begun, {"role": "user", "content": content(prompt, pictures("images", images))}]


def content(text: str, images: list[dict[str, Any]]) -> Any:
    """A message's content, images before the text as in Ollama's prompts."""
    if not images:
        return text
    return [*images, {"type": "text", "text": text}] if text else images


def pictures(at: str, given: Any) -> list[dict[str, Any]]:
    """Base64 texts as image parts; a text may be a data: address already, but no other address.

    Raises:
        ValueError: an image is not a text, or is another address.
    """
    if given is None:
        return []
    if not isinstance(given, list):
        refuse(at, given, "a list of images in base64")
    parts = []
    for number, image in enumerate(given):
        if not isinstance(image, str) or not image or ("://" in image[:16]):
            refuse(f"{at}[{number}]", image, "an image in base64, which is what this field takes")
        url = image if image.startswith("data:") else f"data:image/png;base64,{image}"
        parts.append({"type": "image_url", "image_url": {"url": url}})
    return parts


def tools(given: Any) -> list[dict[str, Any]] | None:
    """Declared tools in the form of chat completions, which Ollama's have too; None if there are none.

    Raises:
        ValueError: ``given`` is not a list of functions with a name.
    """
    if not given:
        return None
    if not isinstance(given, list):
        refuse("tools", given, "a list of tools")
    return [_tool(f"tools[{number}]", tool) for number, tool in enumerate(given)]


def _tool(at: str, tool: Any) -> dict[str, Any]:
    function = tool.get("function") if isinstance(tool, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        refuse(at, tool, "a tool: an object with type 'function' and a function that has a name")
    if tool.get("type") not in (None, "function"):
        refuse(f"{at}.type", tool["type"], "'function'; this server calls no other tools")
    return {"type": "function", "function": dict(function)}


def _given_ids(conversation: list[Any]) -> set[str]:
    """The ids that a client gives to calls and results."""
    found: set[str] = set()
    for message in conversation:
        if isinstance(message, Mapping):
            calls = message.get("tool_calls")
            ids = [call.get("id") for call in calls if isinstance(call, Mapping)] if isinstance(calls, list) else []
            found.update(one for one in (*ids, message.get("tool_call_id")) if isinstance(one, str))
    return found


class _Calls:
    """The calls of a conversation without a result so far. Ollama names a result by its tool, chat completions by an id."""

    def __init__(self, given: set[str]) -> None:
        """Begin a conversation in which the client has given the ids ``given``."""
        self._waiting: list[tuple[str, str]] = []
        self._given = given
        self._count = 0

    def add(self, name: str, given: Any) -> str:
        """The id of a call: the client's, or one that is not in the conversation yet."""
        self._count += 1
        made = given if isinstance(given, str) and given else self._made()
        self._waiting.append((made, name))
        return made

    def _made(self) -> str:
        while (made := f"call_{self._count}") in self._given:
            self._count += 1
        return made

    def answered(self, name: str | None, given: str | None) -> tuple[str, str | None]:
        """The id and tool of the call that a result answers: by its id, else its tool's first call, else the first call."""
        found = next((one for one in self._waiting if given and one[0] == given), None)
        found = found or next((one for one in self._waiting if not given and name in (None, one[1])), None)
        if found is None:
            return given or self._made(), name
        self._waiting.remove(found)
        return found[0], name or found[1]


def _message(at: str, message: Any, calls: _Calls) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        refuse(at, message, "an object")
    role = message.get("role")
    ROLE(f"{at}.role", role)
    text = _text(f"{at}.content", message.get("content")) or ""
    made: dict[str, Any] = {"role": role, "content": content(text, pictures(f"{at}.images", message.get("images")))}
    if role == "assistant":
        if thought := _text(f"{at}.thinking", message.get("thinking")):
            made["reasoning_content"] = thought
        if called := message.get("tool_calls"):
            made["tool_calls"] = _called(f"{at}.tool_calls", called, calls)
    elif message.get("tool_calls"):
        raise ValueError(f"{at}.tool_calls: only the assistant calls tools, and this message's role is {shown(role)}")
    if role == "tool":
        name = _text(f"{at}.tool_name", message.get("tool_name") or message.get("name"))
        made["tool_call_id"], named = calls.answered(name, _text(f"{at}.tool_call_id", message.get("tool_call_id")))
        if named:
            made["name"] = named
    return made


def _text(at: str, value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        refuse(at, value, "a string")
    return value


def _called(at: str, given: Any, calls: _Calls) -> list[dict[str, Any]]:
    if not isinstance(given, list):
        refuse(at, given, "a list of calls")
    made = []
    for number, call in enumerate(given):
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            refuse(f"{at}[{number}]", call, "a call: an object with a function that has a name and arguments")
        arguments = function.get("arguments")
        if arguments is not None and not isinstance(arguments, Mapping):
            refuse(f"{at}[{number}].function.arguments", arguments, "an object")
        name = function["name"]
        written = json.dumps(arguments or {}, ensure_ascii=False)
        made.append({"id": calls.add(name, call.get("id")), "type": "function", "function": {"name": name, "arguments": written}})
    return made
