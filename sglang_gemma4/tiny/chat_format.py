"""Rendering dialogues with the template that ships in the checkpoints, and cutting them into trained and untrained stretches."""

import re
from functools import lru_cache
from pathlib import Path
from typing import Any

from sglang_gemma4.tiny.dialogues import Dialogue

TEMPLATE = Path(__file__).with_name("chat_template.jinja")
MODEL_START = "<|turn>model\n"
# A stretch that the model writes: up to its turn's end, or to the opening of a tool's response, which stops generation.
_WRITTEN = re.compile(r"(?:(?<=<\|turn>model\n)|(?<=<tool_response\|>)(?!<\|tool_response>))(.*?(?:<turn\|>|<\|tool_response>))", re.S)


@lru_cache(maxsize=1)
def _template() -> Any:
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    return ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True).from_string(TEMPLATE.read_text())


def render(dialogue: Dialogue, prompt_only: bool = False) -> str:
    """The whole dialogue as text; `prompt_only` stops where the model would begin its last message."""
    messages = dialogue.messages[:-1] if prompt_only else dialogue.messages
    return str(
        _template().render(
            messages=messages,
            tools=dialogue.tools or None,
            bos_token="<bos>",
            add_generation_prompt=prompt_only,
            enable_thinking=dialogue.thinking,
        )
    )


def stretches(text: str) -> list[tuple[str, bool]]:
    """`text` cut into (piece, written by the model)."""
    out, at = [], 0
    for match in _WRITTEN.finditer(text):
        out += [(text[at : match.start(1)], False), (match.group(1), True)]
        at = match.end(1)
    out.append((text[at:], False))
    return [(piece, written) for piece, written in out if piece]
