"""The grammar of an answer that calls tools, in the syntax that Gemma 4 was trained on.

An answer that must call a tool consists only of calls, after a thought if the model thinks. An answer that may call a tool is any text in
which each call follows its tool's schema.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sglang_gemma4.serving.argument_grammar import ArgumentGrammar
from sglang_gemma4.serving.grammar_rules import Item, Raw, Ref, Repeat, Rules, Sequence_, Text
from sglang_gemma4.serving.markers import CALL_END, CALL_START, LABEL, STRING, THOUGHT_END, THOUGHT_START
from sglang_gemma4.serving.schema_ends import reason_against
from sglang_gemma4.serving.schema_shapes import Schema
from sglang_gemma4.serving.text_tokens import SIGN

MARKERS = (CALL_START, CALL_END, THOUGHT_START, THOUGHT_END, STRING)
LIMIT = 5000
"""Most rules of one request's grammar. Compiling takes some milliseconds per rule with the released vocabulary."""

Thought = Literal["none", "may", "open"]
"""The answer has no thought, may begin with one, or continues one that the prompt has opened."""


@dataclass(frozen=True)
class ToolSchema:
    """A declared tool: its name and the schema of its arguments (None: no arguments; True: anything)."""

    name: str
    parameters: Schema | None


@dataclass(frozen=True)
class Markers:
    """How markers are matched: as single tokens if the tokenizer has them, otherwise as text."""

    items: Mapping[str, Item]

    @classmethod
    def of(cls, token_id: Callable[[str], int | None] | None = None) -> "Markers":
        """``token_id`` gives the id of a marker's token or None; without it all markers are matched as text."""
        ids = {marker: token_id(marker) if token_id else None for marker in MARKERS}
        return cls({marker: Text(marker) if number is None else Raw(f"Token({number})") for marker, number in ids.items()})

    def __getitem__(self, marker: str) -> Item:
        return self.items[marker]

    def anything_but(self, *markers: str) -> Item:
        """Any number of tokens other than ``markers``."""
        ids = [item.ebnf[len("Token(") : -1] for marker in markers if isinstance(item := self.items[marker], Raw)]
        if len(ids) == len(markers):
            return Repeat((Raw(f"ExcludeToken({', '.join(ids)})"),), 0, None)
        return Raw(f"TagDispatch(loop_after_dispatch=false,excludes=({', '.join(map(json.dumps, markers))}))")


def thought(markers: Markers, opened: bool) -> str:
    """EBNF of a whole thought, or of the rest of one that the prompt has opened."""
    rules = Rules(LIMIT)
    begin: tuple[Item, ...] = () if opened else (markers[THOUGHT_START], Text(LABEL))
    written = rules.ebnf(
        rules.add("thought", [(*begin, markers.anything_but(THOUGHT_START, THOUGHT_END, CALL_START), markers[THOUGHT_END])])
    )
    assert written is not None, "a thought can end"
    return SIGN + written


class ToolGrammarError(ValueError):
    """Calls of a tool cannot be constrained; the message names the tool and the reason."""


class ToolGrammar:
    """The grammars of answers with calls of ``tools``.

    Attributes:
        widened: the JSON schema keywords that are not enforced, each with the first tool that has it.

    Raises:
        ToolGrammarError: no call of a tool can satisfy its schema, a reference in it cannot be resolved, or it is too large.
    """

    def __init__(self, tools: Sequence[ToolSchema], markers: Markers) -> None:
        self.markers = markers
        self.widened: dict[str, str] = {}
        self._rules = Rules(LIMIT)
        shared: dict[str, Ref] = {}
        arguments = [self._arguments(tool, shared) for tool in tools]
        completable = self._rules.completable()
        for tool, rule in zip(tools, arguments, strict=True):
            if rule.name not in completable:
                place = tool.parameters is not None and reason_against(tool.parameters)
                raise ToolGrammarError(
                    f"tool {tool.name!r}: no arguments satisfy its parameters, or none that end{f': {place}' if place else ''}"
                )
        self._head = self._rules.add("call", [(Text(f"call:{tool.name}"), rule) for tool, rule in zip(tools, arguments, strict=True)])

    def _arguments(self, tool: ToolSchema, shared: dict[str, Ref]) -> Ref:
        if not tool.name or set(tool.name) & set('{}<>"') or any(character.isspace() for character in tool.name):
            raise ToolGrammarError(f"tool {tool.name!r}: a name of letters, digits, '_', '-' and '.' is needed for Gemma 4's syntax")
        grammar = ArgumentGrammar(_nothing if tool.parameters is None else tool.parameters, self._rules, self.markers[STRING], shared)
        try:
            arguments = grammar.arguments()
        except RecursionError as error:
            raise ToolGrammarError(f"tool {tool.name!r}: its parameters are nested too deeply to be enforced") from error
        except ValueError as error:
            raise ToolGrammarError(f"tool {tool.name!r}: its parameters cannot be enforced: {error}") from error
        except (TypeError, AttributeError, KeyError, OverflowError) as error:  # not a schema; SGLang does not check all of them
            raise ToolGrammarError(f"tool {tool.name!r}: its parameters are no JSON schema: {type(error).__name__}: {error}") from error
        for keyword in grammar.widened:
            self.widened.setdefault(keyword, tool.name)
        return arguments

    def inside_call(self) -> str:
        """EBNF of the text between a call's markers."""
        return self._ebnf(self._head)

    def required(self, parallel: bool, thought: Thought) -> str:
        """EBNF of an answer of one call, or of one or more with ``parallel``."""
        call = self._rules.add("marked", [(self.markers[CALL_START], self._head, self.markers[CALL_END])])
        calls: Item = Repeat((call,), 1, None if parallel else 1)
        inside = (self.markers.anything_but(THOUGHT_START, THOUGHT_END, CALL_START), self.markers[THOUGHT_END])
        before: dict[Thought, list[Sequence_]] = {
            "none": [()],
            "may": [(), (self.markers[THOUGHT_START], Text(LABEL), *inside)],
            "open": [inside],
        }
        return self._ebnf(self._rules.add("answer", [(*one, calls) for one in before[thought]]))

    def _ebnf(self, root: Ref) -> str:
        written = self._rules.ebnf(root)
        assert written is not None, "each tool can be completed"
        return SIGN + written


_nothing: Mapping[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
