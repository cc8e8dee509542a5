"""Decides which answers with tools are constrained, and builds SGLang's structural tags for them.

With ``tool_choice`` "required" or a named tool, the answer consists of calls of those tools, and each follows its schema, strict or not.
With "auto", an answer is constrained if a tool is ``strict``: calls of strict tools follow their schema, other calls may have any
arguments.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any

import xgrammar
from sglang.srt.entrypoints.openai.protocol import Tool, ToolChoice
from xgrammar.structural_tag import GrammarFormat, OrFormat, SequenceFormat, StructuralTag, TagFormat, TriggeredTagsFormat

from sglang_gemma4.serving.byte_cache import ByteCache
from sglang_gemma4.serving.client_grammars import converter
from sglang_gemma4.serving.grammar_trial import TrialError
from sglang_gemma4.serving.markers import CALL_END, CALL_START
from sglang_gemma4.serving.open_thoughts import ends_in_thought
from sglang_gemma4.serving.tool_grammar import MARKERS, Markers, Thought, ToolGrammar, ToolGrammarError, ToolSchema, thought

KEPT = 32 << 20
"""Limit in bytes of the cache of clients' schemas and grammars."""

Widened = dict[str, str]
_KEPT: ByteCache[tuple[Any, Widened]] = ByteCache(KEPT, lambda key, value: 2 * len(str(key)) + 2 * len(value[0].model_dump_json()))


class CallTag(StructuralTag):  # type: ignore[misc]
    """A structural tag of this package, with variants for answers that have a thought."""

    _with_thought: Callable[[Thought], "CallTag"] | None = None

    def behind(self, thought: Thought) -> "CallTag":
        """The tag for an answer after a thought; the tag itself if any text may come first anyway."""
        return self if self._with_thought is None else self._with_thought(thought)


def call_tag(
    tools: Sequence[Tool], tool_choice: Any, parallel: bool, tokenizer: Any, strict_level: int, say: Callable[[str], None]
) -> CallTag | None:
    """The tag for ``tool_choice`` "auto", "required" or a named tool; None if the answer is not constrained.

    Args:
        strict_level: ``SGLANG_TOOL_STRICT_LEVEL``; from 1 every answer with tools is constrained, from 2 all tools are strict.
        say: called with a sentence for each keyword of a schema that is not enforced.

    Raises:
        ToolGrammarError: a tool's calls cannot be constrained; the message is for the client.
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
        raise ToolGrammarError(f"tool_choice: there is no tool {named!r:.80} among the declared: {[t.function.name for t in tools][:20]}")
    key = json.dumps(schemas), parallel, _token_ids(tokenizer)
    if must:
        tag, widened = _required(key, "none")
        tag._with_thought = lambda thought: _required(key, thought)[0]
    else:
        tag, widened = _free(key)
    for keyword in widened:
        say(f"{keyword!r} in a tool's parameters is not enforced")
    return tag


def thought_of(prompt: str) -> Thought:
    """Whether a thinking model's answer to ``prompt`` may begin with a thought ("may") or continues one ("open")."""
    return "open" if ends_in_thought(prompt) else "may"


def json_tag(schema: dict[str, Any], prompt: str, tokenizer: Any, **whitespace: Any) -> StructuralTag:
    """The tag of a JSON answer to ``prompt`` after an optional thought; ``whitespace`` are xgrammar's whitespace options.

    Raises:
        ToolGrammarError: xgrammar cannot enforce the schema; the message is for the client.
    """
    key = json.dumps(schema), ends_in_thought(prompt), _token_ids(tokenizer), tuple(whitespace.items())
    tag: StructuralTag = _KEPT.get(("json", *key), lambda: (_json(*key), {}))[0]
    return tag


def _json(schema: str, opened: bool, token_ids: tuple[int | None, ...], whitespace: tuple[tuple[str, Any], ...]) -> StructuralTag:
    ids, options = dict(zip(MARKERS, token_ids, strict=True)), dict(whitespace)
    try:
        found = converter().run({"kind": "convert", "text": schema, "options": options})
        answer = GrammarFormat(grammar=found.get("grammar") or str(xgrammar.Grammar.from_json_schema(schema, **options)))
    except (RuntimeError, TrialError) as error:
        raise ToolGrammarError(f"response_format: its schema cannot be enforced: {str(error)[-600:]}") from error
    behind = SequenceFormat(elements=[GrammarFormat(grammar=_checked(thought(Markers.of(ids.get), opened))), answer])
    return StructuralTag(format=behind if opened else OrFormat(elements=[behind, answer]))


_Key = tuple[str, bool, tuple[int | None, ...]]
"""Tools and their schemas as JSON, whether several calls may come, and the markers' ids."""


def _required(key: _Key, thought: Thought) -> tuple[CallTag, Widened]:
    def make() -> tuple[CallTag, Widened]:
        schemas, parallel, token_ids = key
        grammar = _grammar(schemas, token_ids)
        return CallTag(format=GrammarFormat(grammar=_checked(grammar.required(parallel, thought)))), grammar.widened

    tag, widened = _KEPT.get(("required", thought, *key), make)
    return tag.model_copy(), widened


def _free(key: _Key) -> tuple[CallTag, Widened]:
    def make() -> tuple[CallTag, Widened]:
        schemas, parallel, token_ids = key
        grammar = _grammar(schemas, token_ids)
        call = TagFormat(begin=CALL_START, content=GrammarFormat(grammar=_checked(grammar.inside_call())), end=CALL_END)
        return CallTag(format=TriggeredTagsFormat(triggers=[CALL_START], tags=[call], stop_after_first=not parallel)), grammar.widened

    tag, widened = _KEPT.get(("free", *key), make)
    return tag.model_copy(), widened


def _grammar(schemas: str, token_ids: tuple[int | None, ...]) -> ToolGrammar:
    ids = dict(zip(MARKERS, token_ids, strict=True))
    return ToolGrammar([ToolSchema(name, parameters) for name, parameters in json.loads(schemas)], Markers.of(ids.get))


def _checked(ebnf: str) -> str:
    """Return ``ebnf`` if xgrammar accepts it, so that the request fails here and not in the scheduler."""
    try:
        xgrammar.Grammar.from_ebnf(ebnf)
    except RuntimeError as error:
        raise ToolGrammarError(f"the tools' schemas cannot be enforced: {str(error)[-200:]}") from error
    return ebnf


def _token_ids(tokenizer: Any) -> tuple[int | None, ...]:
    """The markers' ids in a transformers tokenizer; None for a marker that is not a single token."""
    if tokenizer is None:
        return (None,) * len(MARKERS)
    found = [tokenizer.convert_tokens_to_ids(marker) for marker in MARKERS]
    return tuple(number if number != tokenizer.unk_token_id else None for number in found)
