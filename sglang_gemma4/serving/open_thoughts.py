"""Whether an answer goes on with a thought that its prompt leaves open."""

from typing import Any

from sglang_gemma4.serving.answer import AnswerReader
from sglang_gemma4.serving.markers import LABEL, THOUGHT_START

_PROMPT_END = 4096  # tokens


def opening_of(messages: Any, tokenizer: Any, request: Any) -> str:
    """The marker and label of the thought that the prompt leaves open, or "".

    Only the prompt's end counts, since clients may write markers elsewhere: the template's end, then the beginning of an answer that the
    request wants continued. For text-only models SGLang keeps only the prompt's tokens.
    """
    prompt = str(messages.prompt or tokenizer.decode(list(messages.prompt_ids or [])[-_PROMPT_END:]))
    begun = begun_answer(request)
    reader = AnswerReader(thoughts=True, calls=True, in_thought=ends_in_thought(prompt.removesuffix(begun)))
    reader.read(begun)
    return THOUGHT_START + LABEL if reader.thinking else ""


def begun_answer(request: Any) -> str:
    """The beginning of an answer that a chat request wants continued, or ""."""
    last = request.messages[-1] if request.messages and getattr(request, "continue_final_message", False) else None
    return last.content if last is not None and last.role == "assistant" and isinstance(last.content, str) else ""


def ends_in_thought(prompt: str) -> bool:
    """Whether a prompt ends by opening a thought, which the answer then continues."""
    return prompt.endswith(THOUGHT_START + LABEL)
