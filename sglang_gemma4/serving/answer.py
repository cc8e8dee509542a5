"""Parser of a Gemma 4 answer: thoughts, tool calls and text, whole or streamed.

An answer is text with markers, each a single token of the model::

    <|channel>thought
    Rome it is.
    <channel|>Let me look.<|tool_call>call:weather{city:<|"|>Rome<|"|>}<tool_call|>

Models also write ``call:weather(city="Rome")``, after the marker or, with long prompts, without it. Without the marker it is a call only
if it names a declared tool. It must also begin a line outside code blocks, or follow a thought or another call.

The result does not depend on how the answer is cut into pieces. The reader holds back only what may still become a marker or such a call.
After a ``<tool_call|>`` in a string, which may have ended the call, it holds back up to ``string_ends.LIMIT`` characters.
"""

import functools
import re
from collections.abc import Callable, Mapping

from sglang_gemma4.serving.answer_parts import FENCE, KEPT, AnswerParts, Part
from sglang_gemma4.serving.arguments_json import encodable
from sglang_gemma4.serving.call_heads import HEAD, HEAD_BEGUN, UNMARKED, UNMARKED_BEGUN, UNMARKED_HEAD, may_become
from sglang_gemma4.serving.markers import CALL_END, CALL_START, LABEL, STRING, THOUGHT_END, THOUGHT_START, partial
from sglang_gemma4.serving.schema_types import UNKNOWN, Schemas
from sglang_gemma4.serving.string_ends import Doubt
from sglang_gemma4.serving.tool_arguments import ArgumentsReader

_STRAY = re.compile(r"[\s}\])]+")
_SPACE = re.compile(r"\s+")
_BLANKS = re.compile(r"[ \t]{0,64}")
_LINE = re.compile(r"(?:\A|\n)[ \t]{0,64}\Z")


class AnswerReader(AnswerParts):
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
        super().__init__()
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
        self._from_thought = False  # the call being read began in a thought
        self._name = ""
        self._rest = ""
        self._place = 0  # offset in the answer of the text being read
        self._doubt = Doubt()  # whether an end marker in a string ended the call
        self._again = ""  # text to read again before the rest
        self._step: Callable[[str, int], int] = self._thought_text if in_thought else self._unmarked if unmarked else self._text

    @property
    def thinking(self) -> bool:
        """Whether the answer is inside a thought."""
        return self._step in (self._thought_text, self._label)

    def read(self, text: str) -> list[Part]:
        """The parts that ``text`` adds to the answer."""
        self._read(encodable(text))
        return self._taken()

    def _read(self, text: str) -> None:
        text, at = self._rest + text, 0
        while at < len(text) or self._again:
            if again := self._again:
                text, at, self._place, self._again = again + text[at:], 0, self._place + at - len(again), ""
            before, step = at, self._step
            at = step(text, at)
            if at == before and self._step == step:
                break
        self._place, self._rest = self._place + at, text[at:]

    def finish(self) -> list[Part]:
        """End the answer: returns the parts that were held back. A call that was cut off is returned as far as it came."""
        while self._step == self._doubtful:
            self._decide(self._doubt.at_end(self._rest))
            self._read("")
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
        elif self._step in (self._text, self._unmarked, self._behind_thought):
            self._say(rest)
        self._space, self._newline = [], ""
        return self._taken()

    # Steps: each reads some text and returns where it stopped. A step that neither advances nor changes ``_step`` waits for more text.

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
        elif marker == CALL_END:
            self._last = ""
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
            fences, seen = fences + text.count(FENCE, seen, place), place
            before = text[place - KEPT : place] if place - KEPT >= at else self._last + text[at:place]
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
            self._step = self._behind_thought if marker == THOUGHT_END else self._label
        return at

    def _behind_thought(self, text: str, at: int) -> int:
        """After a thought: a call without its marker may begin. If calls stay in the text, an end marker tells the next parser so."""
        if self.tools is None and CALL_START in self._in_text and self._text_before:
            blanks = _BLANKS.match(text, at)
            begins = blanks.end() if blanks else at
            if UNMARKED_HEAD.match(text, begins):
                self._say(CALL_END)
            elif may_become(UNMARKED_BEGUN, text, begins):
                return at
        self._step = self._text
        return at

    def _head(self, text: str, at: int) -> int:
        """After ``<|tool_call>``: the tool's name, or text that is no call."""
        head = HEAD.match(text, at)
        if head is None and self.tools is not None and text.startswith(CALL_END, at):  # nothing is called
            self._step = self._thought_text if self._from_thought else self._text
            return at + len(CALL_END)
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
        if self._arguments.doubtful:
            stop += len(CALL_END)
            self._doubt.begin(self._place + stop, self._arguments)
            self._step = self._doubtful
            return stop
        if self._arguments.ended:
            self._end_call()
        return stop

    def _doubtful(self, text: str, at: int) -> int:
        """After an end marker in a string: read on until it is decided whether the call has ended."""
        at, goes_on = self._doubt.read(text, at, self._place)
        if goes_on is not None:
            self._decide(goes_on)
        return at

    def _decide(self, goes_on: bool) -> None:
        """Decide whether the marker is text of the string or ended the call, and read again what was taken after the marker."""
        assert self._arguments is not None
        self._again = self._doubt.behind()
        self._arguments.decide(goes_on)
        self._step = self._call
        self._give_arguments(CALL_END)
        if not goes_on:
            self._space = [] if self._as_text else [""]
            self._end_call()
            self._step, self._as_text = self._text, False

    def _tail(self, text: str, at: int) -> int:
        """After a call's last bracket: the end marker, which surplus brackets and delimiters may precede."""
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
        """Pass the text before the next marker to ``take``. Returns the place after the marker and the marker, or "" if none has come."""
        found = _any_of(markers).search(text, at)
        stop = found.start() if found else len(text) - partial(text, at, markers)
        if stop > at:
            take(text[at:stop])
        return (found.end(), found.group()) if found else (stop, "")

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


@functools.cache
def _any_of(markers: tuple[str, ...], *patterns: str) -> re.Pattern[str]:
    return re.compile("|".join([*map(re.escape, markers), *patterns]))
