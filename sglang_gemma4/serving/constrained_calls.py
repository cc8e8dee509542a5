"""When an answer's tool calls are constrained, and SGLang's structural tag for it.

An answer that must call (``tool_choice`` "required" or a named tool) is constrained to calls of the tools it may call, each with its
schema, strict or not. One that may call is, where a tool is ``strict``: a call of a strict tool follows its schema, a call of another
has any arguments.
"""

import json
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import xgrammar
from sglang.srt.entrypoints.openai.protocol import Tool, ToolChoice
from xgrammar.structural_tag import (
    GrammarFormat,
    OrFormat,
    SequenceFormat,
    StructuralTag,
    TagFormat,
    TriggeredTagsFormat,
)

from sglang_gemma4.serving.answer import ends_in_thought
from sglang_gemma4.serving.tool_grammar import (
    CALL_END,
    CALL_START,
    MARKERS,
    Markers,
    Thought,
    ToolGrammar,
    ToolGrammarError,
    ToolSchema,
    thought,
)

KEPT = 256
"""Grammars that are kept for the requests that ask for them again."""


class CallTag(StructuralTag):  # type: ignore[misc]
    """A structural tag of this package, which can also be had for an answer with a thought."""

    _with_thought: Callable[[Thought], "CallTag"] | None = None

    def behind(self, thought: Thought) -> "CallTag":
        """The tag for an answer that the model thinks before; itself where any text may come first anyway."""
        return self if self._with_thought is None else self._with_thought(thought)


def call_tag(
    tools: Sequence[Tool], tool_choice: Any, parallel: bool, tokenizer: Any, strict_level: int, say: Callable[[str], None]
) -> CallTag | None:
    """The tag for ``tool_choice`` "auto", "required" or a named tool; None where nothing is to be constrained.

    ``strict_level`` is ``SGLANG_TOOL_STRICT_LEVEL``: from 1, every answer with tools is constrained, from 2, all tools are strict.
    ``say`` is told each keyword of a schema that is not enforced.

    Raises:
        ToolGrammarError: a tool's calls cannot be constrained; for the client.
    """
    named = tool_choice.function.name if isinstance(tool_choice, ToolChoice) else None
    must = named is not None or tool_choice == "required"
    if not must and not (tool_choice == "auto" and (strict_level >= 1 or any(tool.function.strict for tool in tools))):
        return None
    schemas = [
        (tool.function.name, tool.function.parameters or None if must or tool.function.strict or strict_level >= 2 else True)
        for tool in tools
        if named in (None, tool.function.name)
    ]
    if not schemas:
        raise ToolGrammarError(f"tool_choice: there is no tool {named!r} among the declared: {[t.function.name for t in tools]}")
    key = json.dumps(schemas), parallel, _token_ids(tokenizer)
    if must:
        tag, widened = _required(*key, "none")
        tag._with_thought = lambda thought: _required(*key, thought)[0]
    else:
        tag, widened = _free(*key)
    for keyword in widened:
        say(f"{keyword!r} in a tool's parameters is not enforced")
    return tag


def thought_of(prompt: str) -> Thought:
    """Whether an answer to ``prompt`` by a model that thinks may begin with a thought, or goes on with one."""
    return "open" if ends_in_thought(prompt) else "may"


def json_tag(schema: dict[str, Any], prompt: str, tokenizer: Any, **whitespace: Any) -> StructuralTag:
    """The tag of a JSON answer to ``prompt`` by a model that may think first; ``whitespace``: xgrammar's options of it.

    Raises:
        ToolGrammarError: xgrammar cannot enforce the schema; for the client.
    """
    return _json(json.dumps(schema), ends_in_thought(prompt), _token_ids(tokenizer), tuple(whitespace.items()))


@lru_cache(KEPT)
def _json(schema: str, opened: bool, token_ids: tuple[int | None, ...], whitespace: tuple[tuple[str, Any], ...]) -> StructuralTag:
    ids = dict(zip(MARKERS, token_ids, strict=True))
    try:
        answer = GrammarFormat(grammar=str(xgrammar.Grammar.from_json_schema(schema, **dict(whitespace))))
    except RuntimeError as error:
        raise ToolGrammarError(f"response_format: its schema cannot be enforced: {str(error)[-200:]}") from error
    behind = SequenceFormat(elements=[GrammarFormat(grammar=_checked(thought(Markers.of(ids.get), opened))), answer])
    return StructuralTag(format=behind if opened else OrFormat(elements=[behind, answer]))


@lru_cache(KEPT)
def _required(schemas: str, parallel: bool, token_ids: tuple[int | None, ...], thought: Thought) -> tuple[CallTag, dict[str, str]]:
    grammar = _grammar(schemas, token_ids)
    return CallTag(format=GrammarFormat(grammar=_checked(grammar.required(parallel, thought)))), grammar.widened


@lru_cache(KEPT)
def _free(schemas: str, parallel: bool, token_ids: tuple[int | None, ...]) -> tuple[CallTag, dict[str, str]]:
    grammar = _grammar(schemas, token_ids)
    call = TagFormat(begin=CALL_START, content=GrammarFormat(grammar=_checked(grammar.inside_call())), end=CALL_END)
    return CallTag(format=TriggeredTagsFormat(triggers=[CALL_START], tags=[call], stop_after_first=not parallel)), grammar.widened


def _grammar(schemas: str, token_ids: tuple[int | None, ...]) -> ToolGrammar:
    ids = dict(zip(MARKERS, token_ids, strict=True))
    return ToolGrammar([ToolSchema(name, parameters) for name, parameters in json.loads(schemas)], Markers.of(ids.get))


def _checked(ebnf: str) -> str:
    """``ebnf``, which xgrammar reads: what the scheduler would refuse later is refused here."""
    try:
        xgrammar.Grammar.from_ebnf(ebnf)
    except RuntimeError as error:
        raise ToolGrammarError(f"the tools' schemas cannot be enforced: {str(error)[-200:]}") from error
    return ebnf


def _token_ids(tokenizer: Any) -> tuple[int | None, ...]:
    """The markers' ids in a tokenizer of transformers; None for a marker that is not one token of it."""
    if tokenizer is None:
        return (None,) * len(MARKERS)
    found = [tokenizer.convert_tokens_to_ids(marker) for marker in MARKERS]
    return tuple(number if number != tokenizer.unk_token_id else None for number in found)
