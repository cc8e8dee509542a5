"""SGLang's two parsers of an answer, for thoughts and then for tool calls, on top of :class:`~sglang_gemma4.serving.answer.AnswerReader`.

The first leaves calls in the text as the model wrote them. It still parses them, so that a marker inside their strings stays text.
"""

import json
import logging
from collections.abc import Iterable
from typing import Any

from sglang.srt.entrypoints.openai.protocol import Tool
from sglang.srt.environ import envs
from sglang.srt.function_call.core_types import StreamingParseResult, ToolCallItem
from sglang.srt.function_call.gemma4_detector import Gemma4Detector as StockToolCalls
from sglang.srt.parser.reasoning_parser import Gemma4Detector as StockThoughts
from sglang.srt.parser.reasoning_parser import StreamingParseResult as ThoughtResult

from sglang_gemma4.serving import schema_types
from sglang_gemma4.serving.answer import AnswerReader
from sglang_gemma4.serving.answer_parts import Part
from sglang_gemma4.serving.call_heads import UNMARKED_HEAD
from sglang_gemma4.serving.markers import CALL_END, CALL_START

logger = logging.getLogger(__name__)


class ToolCalls(StockToolCalls):  # type: ignore[misc]
    """SGLang's ``gemma4`` tool-call parser: text and calls of an answer without its thoughts, whole or streamed.

    Calls are numbered in order, whichever tool they name.

    Attributes:
        incomplete_tool_call_indices: the index of the call inside which the answer ended, for SGLang's endpoints.
        tools: the declared tools; None if they are not known before an answer is parsed.
    """

    tools: list[Tool] | None = None

    def __init__(self) -> None:
        super().__init__()
        self._reader: AnswerReader | None = None
        self._whole: tuple[str, list[Tool], list[Part], AnswerReader] | None = None  # the last whole answer that was read
        self.current_tool_id: int = -1  # the last call that began
        self.incomplete_tool_call_indices: set[int] = set()

    def has_tool_call(self, text: str) -> bool:
        """Whether parsing removes something from the text: a call, or a stray end marker. Text that only names a call stays."""
        if not (CALL_START in text or CALL_END in text or UNMARKED_HEAD.search(text)):
            return False
        if self.tools is None:
            return True
        known = self._whole
        parts, reader = self._read(text, self.tools)
        if _joined(parts, "text") != text:
            return True
        if self._whole is not known:
            _say(reader)
        return False

    def detect_and_parse(self, text: str, tools: list[Tool]) -> StreamingParseResult:
        """A whole answer, with one item for each call."""
        parts, reader = self._read(text, tools)
        self._whole = None
        text_parts, calls = _items(parts, -1)
        self.current_tool_id = calls[-1].tool_index if calls else -1
        self._end(reader)
        whole: dict[int, ToolCallItem] = {}
        for item in calls:
            begun = whole.setdefault(item.tool_index, item)
            if begun is not item:
                begun.parameters += item.parameters
        return StreamingParseResult(normal_text=text_parts, calls=list(whole.values()))

    def _read(self, text: str, tools: list[Tool]) -> tuple[list[Part], AnswerReader]:
        """The parts of a whole answer and their reader. SGLang asks two or three times about one answer; it is read once."""
        if self._whole is None or self._whole[0] is not text or self._whole[1] is not tools:
            reader = _reader(tools)
            self._whole = text, tools, [*reader.read(text), *reader.finish()], reader
        return self._whole[2:]

    def parse_streaming_increment(self, new_text: str, tools: list[Tool]) -> StreamingParseResult:
        """What ``new_text`` adds: text, and for each call first its name, then its arguments as they come."""
        if self._reader is None:
            self._reader = _reader(tools)
        return self._result(self._reader.read(new_text))

    def finish(self, tools: list[Tool]) -> StreamingParseResult:
        """What was held back when the answer ended."""
        if self._reader is None:
            return StreamingParseResult()
        result = self._result(self._reader.finish())
        self._end(self._reader)
        self._reader = None
        return result

    def _end(self, reader: AnswerReader) -> None:
        if reader.cut_off:
            self.incomplete_tool_call_indices.add(self.current_tool_id)
        _say(reader)

    def _result(self, parts: list[Part]) -> StreamingParseResult:
        text, calls = _items(parts, self.current_tool_id)
        if calls:
            self.current_tool_id = calls[-1].tool_index
        return StreamingParseResult(normal_text=text, calls=calls)


class Thoughts(StockThoughts):  # type: ignore[misc]
    """SGLang's ``gemma4`` reasoning parser: the thoughts of an answer, and the rest of it for the tool-call parser.

    An answer may have no thought even if thinking was asked for (``force_reasoning``).
    """

    def __init__(self, *args: Any, tool_call_parser_active: bool = False, **kwargs: Any) -> None:
        if not isinstance(kwargs.get("previous_content", ""), str):
            kwargs["previous_content"] = ""  # it was a list of content parts, in which stock would look for markers
        super().__init__(*args, **kwargs)
        self._calls = tool_call_parser_active
        before = self._begin()
        before.read(self.previous_content)
        self._answer = self._begin(in_thought=before.thinking)
        self._thought: list[str] = []  # collected until it ends, if thoughts are not streamed
        self._has_text = False

    def go_on_with_thought(self) -> None:
        """The prompt ends inside a thought, which the answer continues."""
        self._answer = self._begin(in_thought=True)

    def _begin(self, in_thought: bool = False) -> AnswerReader:
        return AnswerReader(
            thoughts=True, calls=self._calls, in_thought=in_thought, unmarked=self.force_reasoning and not self.previous_content
        )

    def detect_and_parse(self, text: str) -> ThoughtResult:
        """A whole answer."""
        parts = self._whole(text)
        return self._maybe_apply_force_nonempty_content(ThoughtResult(_joined(parts, "text"), reasoning_text=_joined(parts, "thought")))

    def detect_and_parse_block_sequence(self, text: str) -> list[tuple[str, str]]:
        """A whole answer as ("reasoning" or "text", content) pairs, in order."""
        return [("reasoning" if part.kind == "thought" else "text", part.text) for part in self._whole(text)]

    def _whole(self, text: str) -> list[Part]:
        return [*self._answer.read(text), *self._answer.finish()]

    def parse_streaming_increment(self, new_text: str) -> ThoughtResult:
        """What ``new_text`` adds to thoughts and text."""
        return self._result(self._answer.read(new_text))

    def finish(self) -> ThoughtResult:
        """What was held back when the answer ended."""
        result = self._result(self._answer.finish(), ended=True)
        if self._force_nonempty_content and not self._has_text:
            return ThoughtResult(self._accumulated_reasoning)
        return result

    def _result(self, parts: list[Part], ended: bool = False) -> ThoughtResult:
        text, thought = _joined(parts, "text"), _joined(parts, "thought")
        self._has_text = self._has_text or bool(text)
        self._in_reasoning = self._answer.thinking
        if self._force_nonempty_content:
            self._accumulated_reasoning += thought
        if not self.stream_reasoning:
            self._thought.append(thought)
            thought = ""
            if ended or text or not self._in_reasoning:
                thought, self._thought = "".join(self._thought), []
        return ThoughtResult(text, reasoning_text=thought)


def _reader(tools: list[Tool]) -> AnswerReader:
    schemas = schema_types.ToolSchemas({tool.function.name: tool.function.parameters for tool in tools if tool.function.name})
    return AnswerReader(thoughts=False, calls=True, tools=schemas, any_tool=envs.SGLANG_FORWARD_UNKNOWN_TOOLS.get())


def _items(parts: Iterable[Part], last: int) -> tuple[str, list[ToolCallItem]]:
    """The text and the call items of ``parts``, numbered from ``last`` + 1."""
    text, calls = "", []
    for part in parts:
        if part.kind == "text":
            text += part.text
            continue
        named = part.kind == "call"
        last += named
        calls.append(ToolCallItem(tool_index=last, name=part.text if named else None, parameters="" if named else part.text))
    return text, calls


def is_whole(arguments: str) -> bool:
    """Whether a call's arguments are valid JSON, which they are unless the answer ended inside the call."""
    try:
        json.loads(arguments, strict=False)
    except (ValueError, RecursionError):
        return False
    return True


def _joined(parts: list[Part], kind: str) -> str:
    return "".join(part.text for part in parts if part.kind == kind)


def _say(reader: AnswerReader) -> None:
    if isinstance(reader.tools, schema_types.ToolSchemas):
        reader.tools.say()
    for name in reader.undeclared:
        logger.warning("the model called %.80r, which the request does not declare: the call stays in the content", name)
    if reader.cut_off:
        logger.warning("an answer ended inside a call of %.80r: its arguments are incomplete", reader.cut_off)
