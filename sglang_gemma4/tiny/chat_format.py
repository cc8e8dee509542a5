"""Renders dialogues with the template that ships in the checkpoints, and cuts them into trained and untrained stretches."""

import re
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from sglang_gemma4.tiny.dialogues import Dialogue, Message

TEMPLATE = Path(__file__).with_name("chat_template.jinja")
MODEL_START = "<|turn>model\n"
EMPTY_THOUGHT = "<|channel>thought\n<channel|>"
AWAITED = "<|tool_response>"
_SMALL = ("e2b", "e4b")
# A stretch that the model writes: it begins after the start of its turn or of a thought, and ends with its turn, or
# with the opening of a tool's response, which stops generation.
_WRITTEN = re.compile(
    r"(?:(?<=<\|turn>model\n)(?!<\|channel>thought\n<channel\|>)|(?<=<\|turn>model\n<\|channel>thought\n<channel\|>)"
    r"|(?<=<tool_response\|>)(?!<\|tool_response>|<\|channel>thought\n)|(?<=<tool_response\|><\|channel>thought\n))"
    r"(.*?(?:<turn\|>|<\|tool_response>))",
    re.S,
)


def has_empty_thought(name: str) -> bool:
    """Whether the template of the checkpoint ``name`` puts an empty thought into generation prompts without thinking.

    As released: 12B, 26B-A4B and 31B do, E2B and E4B do not.
    """
    return not any(small in name for small in _SMALL)


def template_of(name: str) -> str:
    """The chat template that ships in the checkpoint ``name``."""
    return ("{%- set empty_thought = true -%}\n" if has_empty_thought(name) else "") + TEMPLATE.read_text()


@lru_cache(maxsize=1)
def _template() -> Any:
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    return ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True).from_string(TEMPLATE.read_text())


def render(dialogue: Dialogue, prompt_only: bool = False, empty_thought: bool = False) -> str:
    """The whole dialogue as text; ``prompt_only`` stops where the model would begin its last message.

    ``empty_thought``: the last message follows the generation prompt of a model that :func:`has_empty_thought`.

    Raises:
        ValueError: with an empty thought, if the whole dialogue does not begin with the prompt of its last message.
    """
    prompt = _text(dialogue, dialogue.messages[:-1], True, empty_thought)
    if prompt_only:
        return prompt
    whole = _text(dialogue, dialogue.messages)
    if not empty_thought:
        return whole
    plain = _text(dialogue, dialogue.messages[:-1], True)
    if not whole.startswith(plain):
        raise ValueError(f"the whole dialogue does not begin with the prompt of its last message, {plain[-80:]!r}")
    return prompt + whole.removeprefix(plain)


def _text(dialogue: Dialogue, messages: list[Message], prompt: bool = False, empty_thought: bool = False) -> str:
    return str(
        _template().render(
            messages=messages,
            tools=dialogue.tools or None,
            bos_token="<bos>",
            add_generation_prompt=prompt,
            enable_thinking=dialogue.thinking,
            empty_thought=empty_thought,
        )
    )


def asked(dialogue: Dialogue) -> list[Dialogue]:
    """The dialogue up to and including each message of the model, in order: what a server is asked, one request after another.

    With thinking, only messages with a thought: templates drop those of earlier turns.
    """
    ends = [
        at
        for at, message in enumerate(dialogue.messages, 1)
        if message["role"] == "assistant" and (message.get("reasoning") or not dialogue.thinking)
    ]
    return [replace(dialogue, messages=dialogue.messages[:end]) for end in ends]


def stretches(text: str) -> list[tuple[str, bool]]:
    """`text` cut into (piece, written by the model)."""
    out, at = [], 0
    for match in _WRITTEN.finditer(text):
        out += [(text[at : match.start(1)], False), (match.group(1), True)]
        at = match.end(1)
    out.append((text[at:], False))
    return [(piece, written) for piece, written in out if piece]
