"""One state machine for a Gemma 4 answer: thoughts, tool calls and the text between them, whole or in pieces.

An answer is text with markers, each a single token of the model::

    <|channel>thought
    Rome it is.
    <channel|>Let me look.<|tool_call>call:weather{city:<|"|>Rome<|"|>}<tool_call|>

What a piece means never depends on where the answer was cut into pieces: the reader holds back what may still become a marker, and
nothing more.
"""

import functools
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from sglang_gemma4.serving.schema_types import Schemas
from sglang_gemma4.serving.tool_arguments import CALL_END, CALL_START, ArgumentsReader, partial

THOUGHT_START = "<|channel>"
THOUGHT_END = "<channel|>"
LABEL = "thought\n"
TURN = "<|turn>"

_NAME_LIMIT = 256
_PROMPT_END = 4096  # tokens
_HEAD = re.compile(rf'\s{{0,8}}(?:call)?:\s{{0,8}}([^\s{{}}<>"]{{1,{_NAME_LIMIT}}})\s{{0,8}}(\{{|(?={re.escape(CALL_END)}))')
_HEAD_BEGUN = re.compile(rf'\s{{0,8}}(?:(?:call)?:\s{{0,8}}(?:[^\s{{}}<>"]{{1,{_NAME_LIMIT}}}\s{{0,8}})?|c(?:a(?:ll?)?)?)?')
_STRAY = re.compile(r"[\s}\])]+")
_SPACE = re.compile(r"\s+")


class Part(NamedTuple):
    """A piece of an answer: text for the user, a thought, a call's name when it begins, or JSON of its arguments."""

    kind: Literal["text", "thought", "call", "arguments"]
    text: str


class AnswerReader:
    """Takes an answer apart.

    Args:
        thoughts: read ``<|channel>``; otherwise it stays in the text.
        calls: ``<|tool_call>`` means a call, also inside a thought, which it ends.
        tools: the schemas of each declared tool's parameters; a call of another tool stays in the text as the model wrote it. None
            leaves every call in the text: the reader then only keeps thoughts and calls apart.
        any_tool: read calls of tools that are not declared too.
        in_thought: the prompt ends inside a thought.
        unmarked: an answer may begin with a thought's label where the prompt or the model left its marker out.

    Attributes:
        undeclared: names of calls that stayed in the text for want of a declaration.
        cut_off: the name of the call inside which the answer ended, or "".
    """

    def __init__(
        self,
        *,
        thoughts: bool,
        calls: bool,
        tools: Mapping[str, Schemas] | None = None,
        any_tool: bool = False,
        in_thought: bool = False,
        unmarked: bool = False,
    ) -> None:
        self.undeclared: list[str] = []
        self.cut_off = ""
        self._tools = tools
        self._any_tool = any_tool
        self._in_text = tuple(
            marker for marker, read in ((CALL_START, calls), (CALL_END, calls), (THOUGHT_START, thoughts), (THOUGHT_END, thoughts)) if read
        )
        self._in_thought = (THOUGHT_END, THOUGHT_START, *((CALL_START,) if calls else ()))
        self._arguments: ArgumentsReader | None = None
        self._as_text = False  # the call being read stays in the text
        self._newline = ""  # the last of a thought, which belongs to its end marker unless more follows
        self._between = ""  # before the next words of a thought
        self._thought_before = False
        self._from_thought = False  # the call being read began in a thought
        self._space: list[str] = []  # not empty behind a call: white space, dropped where another call or nothing follows
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
        """The answer has ended: what was held back is what it looks like. A call cut off stays as far as it came."""
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

    # Steps: each reads some text and returns where it stopped; one that moves neither in the text nor to another step waits for more.

    def _unmarked(self, text: str, at: int) -> int:
        """The answer's first characters: a thought whose marker is missing, or anything else."""
        begun = text[at : at + len(LABEL)]
        if LABEL.startswith(begun) and begun != LABEL:
            return at
        self._step = self._thought_text if begun == LABEL else self._text
        return at + (len(LABEL) if begun == LABEL else 0)

    def _text(self, text: str, at: int) -> int:
        if self._space and (space := _SPACE.match(text, at)):
            self._space.append(space.group())
            return space.end()
        at, marker = self._until(self._in_text, text, at, self._say)
        if marker == CALL_START:
            self._from_thought, self._step = False, self._head
        elif marker == CALL_END and (self._tools is None or self._as_text):
            self._say(marker)
            self._as_text = False
        elif marker == THOUGHT_START:
            self._step = self._label
        return at

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
        """Behind ``<|tool_call>``: the tool's name, or text that is no call."""
        head = _HEAD.match(text, at)
        if head is None:
            begun = _HEAD_BEGUN.match(text, at)
            stop = begun.end() if begun else at
            if stop == len(text) or (CALL_END.startswith(text[stop:]) and text[stop:] != CALL_END):
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
        name = head[1]
        self._as_text = self._tools is None or not (name in self._tools or self._any_tool)
        self._name = name
        if self._as_text and self._tools is not None:
            self.undeclared.append(name)
        self._arguments = ArgumentsReader(None if self._tools is None else self._tools.get(name))
        if self._as_text:
            self._say(CALL_START + head.group())
        else:
            self._space = []
            self._parts.append(Part("call", name))
        self._step = self._call
        if not head[2]:  # no braces at all
            self._arguments.json.append("}")
            self._give_arguments("")
            self._end_call()
        return head.end()

    def _call(self, text: str, at: int) -> int:
        assert self._arguments is not None
        stop = self._arguments.read(text, at)
        self._give_arguments(text[at:stop])
        if self._arguments.ended:
            self._end_call()
        return stop

    def _tail(self, text: str, at: int) -> int:
        """Behind a call's last brace: its end marker, with brackets too many before it or not."""
        if stray := _STRAY.match(text, at):
            self._space.append("".join(character for character in stray.group() if character.isspace()))
            return stray.end()
        if text.startswith(CALL_END, at):
            self._space, self._step = [""], self._text
            return at + len(CALL_END)
        if partial(text, at, (CALL_END,)) != len(text) - at:
            self._space.append("")
            self._step = self._text
        return at

    # What steps share.

    def _until(self, markers: tuple[str, ...], text: str, at: int, take: Callable[[str], None]) -> tuple[int, str]:
        """Give ``take`` what comes before the next marker; the place behind it and the marker, or "" for want of text."""
        found = _any_of(markers).search(text, at)
        stop = found.start() if found else len(text) - partial(text, at, markers)
        if stop > at:
            take(text[at:stop])
        return (found.end(), found.group()) if found else (stop, "")

    def _say(self, text: str) -> None:
        if text:
            self._parts.append(Part("text", "".join(self._space) + text))
            self._space = []

    def _think(self, text: str) -> None:
        text = self._newline + text
        self._newline = "\n" if text.endswith("\n") else ""
        if words := text.removesuffix("\n"):
            self._parts.append(Part("thought", self._between + words))
            self._between, self._thought_before = "", True

    def _end_thought(self) -> None:
        """Its last newline belongs to the marker; the words of another thought begin a line."""
        self._newline, self._between = "", "\n" if self._thought_before else ""

    def _give_arguments(self, raw: str) -> None:
        assert self._arguments is not None
        if self._as_text:
            self._say(raw)
        elif self._arguments.json:
            self._parts.append(Part("arguments", "".join(self._arguments.json)))
        self._arguments.json = []

    def _end_call(self) -> None:
        self._step = self._text if self._as_text else self._tail
        self._arguments = None

    def _taken(self) -> list[Part]:
        """The parts since the last time, with neighbours of one kind joined."""
        joined: list[Part] = []
        for part in self._parts:
            if joined and joined[-1].kind == part.kind != "call":
                joined[-1] = Part(part.kind, joined[-1].text + part.text)
            else:
                joined.append(part)
        self._parts = []
        return joined


def prompt_of(messages: Any, tokenizer: Any) -> str:
    """The end of a rendered prompt; of a text-only model SGLang keeps its tokens alone."""
    return str(messages.prompt or tokenizer.decode(list(messages.prompt_ids or [])[-_PROMPT_END:]))


def ends_in_thought(prompt: str) -> bool:
    """Whether a rendered prompt leaves a thought open, which the answer then goes on with."""
    return prompt.rfind(THOUGHT_START) > max(prompt.rfind(THOUGHT_END), prompt.rfind(TURN))


@functools.cache
def _any_of(markers: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, markers)))
