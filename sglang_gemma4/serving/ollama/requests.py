"""Translates a request of /api/chat or /api/generate to SGLang's fields, or refuses it by field name."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from sglang_gemma4.serving.ollama import messages, options
from sglang_gemma4.serving.value_kinds import flag, integer, one_of, refuse, shown, text

Path = Literal["chat", "raw", "load"]
SHARED = ("model", "stream", "format", "options", "keep_alive", "think", "logprobs", "top_logprobs", "truncate", "shift")
CHAT = (*SHARED, "messages", "tools")
GENERATE = (*SHARED, "prompt", "system", "images", "raw", "suffix", "template", "context")
LEVELS = ("low", "medium", "high", "max")
REFUSED: Mapping[str, str] = {
    "suffix": "Gemma 4 fills no gap between two texts; leave it out",
    "template": "the server renders the checkpoint's own template; leave it out, or send the whole prompt with raw",
    "context": "no answer here has one; send the conversation to /api/chat",
}
"""Fields that change an answer and are not served, and why; a request with a value that is not empty is refused."""
TOP_LOGPROBS = 20
_NAME = text(1024, empty=False)


@dataclass
class Asked:
    """What a request asks for.

    Attributes:
        path: "chat", "raw" (a completion of the prompt as it is), or "load" (no answer, only whether the model is there).
        stream: whether the answer is streamed.
        thinking: whether the model should think; None leaves that to its template.
        fields: the fields of SGLang's chat or completion request.
    """

    model: str
    path: Path
    stream: bool
    thinking: bool | None = None
    fields: dict[str, Any] = field(default_factory=dict)


def of_chat(body: Any, context: int) -> Asked:
    """The request of /api/chat.

    Args:
        context: the server's context length in tokens.

    Raises:
        ValueError: the request is refused; the message names the field, its value and the remedy.
    """
    asked = _begin(body, CHAT, context)
    said = messages.of_chat(body.get("messages"))
    if not said:
        asked.path = "load"
    options.keep_alive(body.get("keep_alive"), asked.path == "load")
    asked.fields["messages"] = said
    if declared := messages.tools(body.get("tools")):
        asked.fields["tools"] = declared
    return asked


def of_generate(body: Any, context: int) -> Asked:
    """The request of /api/generate: an answer to a prompt, or with ``raw`` the continuation of a text as it is.

    Raises:
        ValueError: as :func:`of_chat`.
    """
    asked = _begin(body, GENERATE, context)
    prompt, system, images = _text(body, "prompt"), _text(body, "system"), body.get("images")
    if body.get("raw") is not None:
        flag("raw", body["raw"])
    if not prompt and not images:
        asked.path = "load"
    elif body.get("raw"):
        for name in ("system", "images", "think", "logprobs", "top_logprobs"):
            if body.get(name):
                raise ValueError(f"{name}: raw sends the prompt as it is, to which this adds nothing; leave out raw or {name}")
        asked.path, asked.fields["prompt"] = "raw", prompt
    else:
        asked.fields["messages"] = messages.of_prompt(prompt, system, images)
    options.keep_alive(body.get("keep_alive"), asked.path == "load")
    return asked


def _begin(body: Any, known: tuple[str, ...], context: int) -> Asked:
    """The part of a request that both endpoints have in common."""
    if not isinstance(body, Mapping):
        refuse("the body", body, "a JSON object")
    if unknown := sorted(set(map(str, body)) - set(known)):
        raise ValueError(f"{unknown[0]:.60}: there is no such field here; there are {', '.join(known)}")
    _NAME("model", body.get("model"))
    for name, reason in REFUSED.items():
        if body.get(name):
            raise ValueError(f"{name}: not served: {reason}")
    for name in ("stream", "truncate", "shift"):  # the last two have no effect: a prompt that does not fit is refused, not cut
        if body.get(name) is not None:
            flag(name, body[name])
    asked = Asked(body["model"], "chat", body.get("stream") is not False, _thinking(body.get("think")))
    asked.fields.update(options.fields(body.get("options"), context))
    if (wanted := _format(body.get("format"))) is not None:
        asked.fields["response_format"] = wanted
    if body.get("logprobs") is not None:
        flag("logprobs", body["logprobs"])
        asked.fields["logprobs"] = body["logprobs"]
    if body.get("top_logprobs"):
        integer(0, TOP_LOGPROBS)("top_logprobs", body["top_logprobs"])
        asked.fields["top_logprobs"] = body["top_logprobs"]
    return asked


def _text(body: Mapping[str, Any], name: str) -> str:
    value = body.get(name)
    if value is not None and not isinstance(value, str):
        refuse(name, value, "a string")
    return value or ""


def _thinking(think: Any) -> bool | None:
    """Whether to think. A level turns thinking on, since Gemma 4 has no levels; None if nothing was given."""
    if think is None or isinstance(think, bool):
        return think
    one_of(*LEVELS)("think", think) if isinstance(think, str) else refuse("think", think, "true, false or a level")
    return True


def _format(wanted: Any) -> dict[str, Any] | None:
    if wanted is None or wanted == "":
        return None
    if wanted == "json":
        return {"type": "json_object"}
    if not isinstance(wanted, Mapping):
        raise ValueError(f"format: {shown(wanted)} is neither 'json' nor a JSON schema")
    return {"type": "json_schema", "json_schema": {"name": "format", "schema": dict(wanted)}}
