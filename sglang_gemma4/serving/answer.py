"""Parser of a Gemma 4 answer: thoughts, tool calls and text, whole or streamed.

An answer is text with markers, each a single token of the model::

    <|channel>thought
    Rome it is.
    <channel|>Let me look.<|tool_call>call:weather{city:<|"|>Rome<|"|>}<tool_call|>

Models also write ``call:weather(city="Rome")``, behind the marker or, after long prompts, without it. Without the marker it is a call only
if it stands behind white space or another call, outside thoughts, and names a declared tool.

The result does not depend on how the answer is cut into pieces: the reader holds back only what may still become a marker or such a call.
"""

import functools
import re
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

from sglang_gemma4.serving.call_heads import HEAD, HEAD_BEGUN, UNMARKED, UNMARKED_BEGUN, UNMARKED_HEAD, may_become
from sglang_gemma4.serving.markers import CALL_END, CALL_START, LABEL, STRING, THOUGHT_END, THOUGHT_START, partial
from sglang_gemma4.serving.schema_types import UNKNOWN, Schemas
from sglang_gemma4.serving.tool_arguments import ArgumentsReader

_STRAY = re.compile(r"[\s}\])]+")
_SPACE = re.compile(r"\s+")
_FENCE = "```"
_KEPT = 66  # characters of the text, to see where a line begins and a fence stands
_LINE = re.compile(r"(?:\A|\n)[ \t]{0,64}\Z")


class Part(NamedTuple):
    """A piece of an answer: text for the user, a thought, the name of a call that begins, or JSON of its arguments."""

    kind: Literal["text", "thought", "call", "arguments"]
    text: str


class AnswerReader:
    """Splits an answer into parts.

    Args:
        thoughts: parse ``<|channel>``; otherwise it stays in the text.
        calls: parse ``<|tool_call>``, also inside a thought, which it ends.
        tools: the schemas of each declared tool's parameters; calls of other tools stay in the text. With None all calls stay in the
            text, and only thoughts are split off.
        any_tool: also parse calls of tools that are not declared.
        in_thought: the prompt ends inside a thought.
        unmarked: the answer may begin with a thought's label without its marker.

    Attributes:
        tools: the argument.
        undeclared: names of calls that stayed in the text because their tool is not declared.
        cut_off: name of the call inside which the answer ended, or "".
    """

    def __init__(
        self,
        *,
        thoughts: bool,
        calls: bool,
        tools: Mapping[str, Schemas | None] | None = None,
        any_tool: bool = False,
        in_thought: bool = False,
        unmarked: bool = False,
    ) -> None:
        self.undeclared: list[str] = []
        self.cut_off = ""
        self.tools = tools
        self._any_tool = any_tool
        self._in_text = tuple(
            marker for marker, read in ((CALL_START, calls), (CALL_END, calls), (THOUGHT_START, thoughts), (THOUGHT_END, thoughts)) if read
        )
        self._in_thought = (THOUGHT_END, THOUGHT_START, *((CALL_START,) if calls else ()))
        self._arguments: ArgumentsReader | None = None
        self._as_text = False  # the call being read stays in the text
        self._newline = ""  # at the end of a thought; dropped with the end marker if nothing follows
        self._between = ""  # separates the next words of a thought from those before
        self._thought_before = False
        self._from_thought = False  # the call being read began in a thought
        self._last = ""  # the text's last characters; "" behind a call or a thought
        self._fences = 0  # of code blocks so far
        self._space: list[str] = []  # white space behind a call, dropped if another call or nothing follows
        self._name = ""
        self._rest = ""
        self._parts: list[Part] = []
        self._step: Callable[[str, int], int] = self._thought_text if in_thought else self._unmarked if unmarked else self._text

    @property
    def thinking(self) -> bool:
        """Whether the answer is inside a thought."""
        return self._step in (self._thought_text, self._label)

    def read(self, text: str) -> list[Part]:
        """The parts that ``text`` adds to the answer."""
        text, at = self._rest + text, 0
        while at < len(text):
            before, step = at, self._step
            at = step(text, at)
            if at == before and self._step == step:
                break
        self._rest = text[at:]
        return self._taken()

    def finish(self) -> list[Part]:
        """The answer has ended: the parts of what was held back. A call that was cut off is returned as far as it came."""
        rest, self._rest = self._rest, ""
        if self._arguments is not None:
            self._arguments.finish(rest)
            self.cut_off = "" if self._as_text else self._name
            self._give_arguments(rest)
        elif self.thinking:
            if self._step != self._label or not LABEL.startswith(rest):
                self._think(rest)
        elif self._step == self._head:
            (self._think if self._from_thought else self._say)(CALL_START + rest)
        elif self._step in (self._text, self._unmarked):
            self._say(rest)
        self._space, self._newline = [], ""
        return self._taken()

    # Steps: each reads some text and returns where it stopped. One that neither advances nor changes the step waits for more text.

    def _unmarked(self, text: str, at: int) -> int:
        """The answer's first characters: a thought without its marker, or anything else."""
        begun = text[at : at + len(LABEL)]
        if LABEL.startswith(begun) and begun != LABEL:
            return at
        self._step = self._thought_text if begun == LABEL else self._text
        return at + (len(LABEL) if begun == LABEL else 0)

    def _text(self, text: str, at: int) -> int:
        if self._space and (space := _SPACE.match(text, at)):
            self._space.append(space.group())
            return space.end()
        if self.tools and (place := self._unmarked_call(text, at)) is not None:
            return place
        at, marker = self._until(self._in_text, text, at, self._say)
        if marker == CALL_START:
            self._from_thought, self._step = False, self._head
        elif marker == CALL_END and (self.tools is None or self._as_text):
            self._say(marker)
            self._as_text = False
        elif marker == THOUGHT_START:
            self._step = self._label
        return at

    def _unmarked_call(self, text: str, at: int) -> int | None:
        """Begin a call that has no marker, or wait for more of what may be one; None if neither comes before the next marker.

        Such a call begins a line outside code blocks: prose and code may name a tool's call.
        """
        fences, seen = self._fences, at
        for found in _any_of(self._in_text, UNMARKED).finditer(text, at):
            place = found.start()
            if found.group() in self._in_text:
                break
            fences, seen = fences + text.count(_FENCE, seen, place), place
            before = text[place - _KEPT : place] if place - _KEPT >= at else self._last + text[at:place]
            if fences % 2 or not _LINE.search(before):
                continue
            head = UNMARKED_HEAD.match(text, place)
            if head and head["name"] in (self.tools or {}):
                self._say(text[at:place])
                self._begin_call(head, "")
                return head.end()
            if head is None and may_become(UNMARKED_BEGUN, text, place):
                self._say(text[at:place])
                return place
        return None

    def _label(self, text: str, at: int) -> int:
        begun = text[at : at + len(LABEL)]
        if begun == LABEL:
            at += len(LABEL)
        elif LABEL.startswith(begun):
            return at
        elif begun == LABEL[:-1] + "<":
            if any(text.startswith(marker, at + len(LABEL) - 1) for marker in self._in_thought):
                at += len(LABEL) - 1
            elif partial(text, at, self._in_thought) == len(text) - at - len(LABEL) + 1:
                return at
        self._step = self._thought_text
        return at

    def _thought_text(self, text: str, at: int) -> int:
        at, marker = self._until(self._in_thought, text, at, self._think)
        if marker == CALL_START:
            self._from_thought, self._step = True, self._head
        elif marker:
            self._end_thought()
            self._step = self._text if marker == THOUGHT_END else self._label
        return at

    def _head(self, text: str, at: int) -> int:
        """After ``<|tool_call>``: the tool's name, or text that is no call."""
        head = HEAD.match(text, at)
        if head is None:
            if may_become(HEAD_BEGUN, text, at):
                return at
            if self._from_thought:
                self._think(CALL_START)
                self._step = self._thought_text
            else:
                self._say(CALL_START)
                self._as_text, self._step = True, self._text
            return at
        if self._from_thought:
            self._end_thought()
        self._begin_call(head, CALL_START)
        return head.end()

    def _begin_call(self, head: re.Match[str], marker: str) -> None:
        name = head["name"]
        self._as_text = self.tools is None or not (name in self.tools or self._any_tool)
        self._name = name
        if self._as_text and self.tools is not None:
            self.undeclared.append(name)
        self._arguments = ArgumentsReader((self.tools or {}).get(name) or UNKNOWN, head["opener"])
        if self._as_text:
            self._say(marker + head.group())
        else:
            self._space = []
            self._parts.append(Part("call", name))
        self._step = self._call
        if not head["opener"]:  # no brackets at all
            self._arguments.json.append("}")
            self._give_arguments("")
            self._end_call()

    def _call(self, text: str, at: int) -> int:
        assert self._arguments is not None
        stop = self._arguments.read(text, at)
        self._give_arguments(text[at:stop])
        if self._arguments.ended:
            self._end_call()
        return stop

    def _tail(self, text: str, at: int) -> int:
        """After a call's last bracket: its end marker, maybe after surplus brackets and delimiters."""
        if stray := _STRAY.match(text, at):
            self._space.append("".join(character for character in stray.group() if character.isspace()))
            return stray.end()
        if text.startswith(STRING, at):
            return at + len(STRING)
        if text.startswith(CALL_END, at):
            self._space, self._step = [""], self._text
            return at + len(CALL_END)
        if partial(text, at, (CALL_END, STRING)) != len(text) - at:
            self._space.append("")
            self._step = self._text
        return at

    # Shared by the steps.

    def _until(self, markers: tuple[str, ...], text: str, at: int, take: Callable[[str], None]) -> tuple[int, str]:
        """Pass the text before the next marker to ``take``; returns the place behind the marker, and it or "" if there is none yet."""
        found = _any_of(markers).search(text, at)
        stop = found.start() if found else len(text) - partial(text, at, markers)
        if stop > at:
            take(text[at:stop])
        return (found.end(), found.group()) if found else (stop, "")

    def _say(self, text: str) -> None:
        if text:
            self._parts.append(Part("text", "".join(self._space) + text))
            said = self._last + text
            self._fences += said.count(_FENCE) - self._last.count(_FENCE)
            self._space, self._last = [], said[-_KEPT:]

    def _think(self, text: str) -> None:
        text = self._newline + text
        self._newline = "\n" if text.endswith("\n") else ""
        if words := text.removesuffix("\n"):
            self._parts.append(Part("thought", self._between + words))
            self._between, self._thought_before = "", True

    def _end_thought(self) -> None:
        """Drop the thought's last newline; another thought begins on a new line."""
        self._newline, self._between, self._last = "", "\n" if self._thought_before else "", ""

    def _give_arguments(self, raw: str) -> None:
        assert self._arguments is not None
        if self._as_text:
            self._say(raw)
        elif self._arguments.json:
            self._parts.append(Part("arguments", "".join(self._arguments.json)))
        self._arguments.json = []

    def _end_call(self) -> None:
        self._step = self._text if self._as_text else self._tail
        self._arguments, self._last = None, "" if not self._as_text else self._last

    def _taken(self) -> list[Part]:
        """The new parts, with neighbours of one kind joined."""
        joined: list[Part] = []
        for part in self._parts:
            if joined and joined[-1].kind == part.kind != "call":
                joined[-1] = Part(part.kind, joined[-1].text + part.text)
            else:
                joined.append(part)
        self._parts = []
        return joined


@functools.cache
def _any_of(markers: tuple[str, ...], *patterns: str) -> re.Pattern[str]:
    return re.compile("|".join([*map(re.escape, markers), *patterns]))
