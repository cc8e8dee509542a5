"""Answers with tool calls and thoughts, through SGLang's two parsers as its chat endpoint asks them. Needs no GPU and no engine."""

import contextlib
import json
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import case  # type: ignore[import-not-found]

LIMIT = 2  # seconds of the processor for one answer
S = '<|"|>'
ROME = f"<|tool_call>call:weather{{city:{S}Rome{S}}}<tool_call|>"
OSLO = f"<|tool_call>call:weather{{city:{S}Oslo{S}}}<tool_call|>"
IN_ROME, IN_OSLO = ("weather", {"city": "Rome"}), ("weather", {"city": "Oslo"})
PROPERTIES = {"city": {"type": "string"}, "days": {"type": "integer"}, "zip": {"type": "string"}}
TOOLS = {"time": {"type": "object", "properties": {}}, "weather": {"type": "object", "properties": PROPERTIES}}


@dataclass(frozen=True)
class Answer:
    """What a model wrote, and what a client should get: ``calls`` as (name, arguments), arguments as text where they are no JSON."""

    name: str
    wrote: str
    calls: list[tuple[str, Any]] = field(default_factory=list)
    text: str = ""
    thought: str = ""
    thinking: bool = False
    """The request asked for thinking."""


def call(arguments: str) -> str:
    return f"<|tool_call>call:weather{{{arguments}}}<tool_call|>"


CALLS = (
    Answer("two calls of one tool", ROME + OSLO, [IN_ROME, IN_OSLO]),
    Answer("the end marker inside a string", call(f"city:{S}a<tool_call|>b{S}"), [("weather", {"city": "a<tool_call|>b"})]),
    Answer(
        "a bracket and the end marker inside a string", call(f"city:{S}f{{x}}<tool_call|> {{y}}{S},days:1"),
        [("weather", {"city": "f{x}<tool_call|> {y}", "days": 1})],
    ),
    Answer("braces inside a string", call(f"city:{S}}}{{{S}"), [("weather", {"city": "}{"})]),
    Answer("brackets in strings of nested arrays", call(f"a:[[{S}x]y{S},{S}[{S}],1]"), [("weather", {"a": [["x]y", "["], 1]})]),
    Answer("arrays of objects of arrays", call("a:[{b:[1,{c:[]}]}]"), [("weather", {"a": [{"b": [1, {"c": []}]}]})]),
    Answer("null stays null", call("a:null,b:[null]"), [("weather", {"a": None, "b": [None]})]),
    Answer(
        "numbers as JSON has them",
        call("a:-1.5e3,b:0,days:12345678901234567890"),
        [("weather", {"a": -1500.0, "b": 0, "days": 12345678901234567890})],
    ),
    Answer("a string where the schema wants one", call("zip:02139"), [("weather", {"zip": "02139"})]),
    Answer("text between and behind calls", f"One.{ROME} Two.{OSLO} Three.", [IN_ROME, IN_OSLO], "One. Two. Three."),
    Answer("an undeclared tool", "<|tool_call>call:dance{}<tool_call|>" + ROME, [IN_ROME], "<|tool_call>call:dance{}<tool_call|>"),
    Answer("a call without its end marker", ROME.removesuffix("<tool_call|>"), [IN_ROME]),
    Answer("a call without its last brace", f"<|tool_call>call:weather{{city:{S}Rome{S}<tool_call|>", [IN_ROME]),
    Answer("an answer cut off in a call", f"<|tool_call>call:weather{{city:{S}Ro", [("weather", '{"city": "Ro')]),
    Answer("keys in delimiters", call(f"{S}city{S}:{S}Rome{S}"), [IN_ROME]),
    Answer("text that is no call", "<|tool_call>no", text="<|tool_call>no"),
)  # fmt: skip
BRACKETS = (
    Answer("round brackets", "<|tool_call>call:weather(days=1)<tool_call|>", [("weather", {"days": 1})]),
    Answer("round brackets without a marker", 'Look.\n\ncall:weather(city="Rome")', [IN_ROME], "Look.\n\n"),
    Answer("round brackets around JSON", '<|tool_call>call:weather({"city": "Rome"})<tool_call|>', [IN_ROME]),
    Answer(
        "round brackets around nested values",
        """call:weather(a=[{'b': (1), "c": ['x', None]}], city='Ro(me)', ok=True)""",
        [("weather", {"a": [{"b": "(1)", "c": ["x", None]}], "city": "Ro(me)", "ok": True})],
    ),
    Answer("round brackets around values without keys", "call:weather('Rome', 5)", [("weather", {"city": "Rome", "days": 5})]),
    Answer("calls of both forms", f'call:weather(city="Rome"){OSLO} Both.', [IN_ROME, IN_OSLO], " Both."),
    Answer("a call without a marker", f"call:weather{{city:{S}Rome{S}}}", [IN_ROME]),
    Answer("a call that is spoken of", "`call:weather(city=x)`, call:dance(a=1)", text="`call:weather(city=x)`, call:dance(a=1)"),
    Answer("brackets without call:", "weather(city='Rome')", text="weather(city='Rome')"),
    Answer("a colon before call:", f"<|tool_call>:call:weather{{city:{S}Rome{S}}}<tool_call|>", [IN_ROME]),
    Answer("Python's quotes and =", call("a=['x', \"y\"],city='it\\'s'"), [("weather", {"a": ["x", "y"], "city": "it's"})]),
)
DELIMITERS = (
    Answer("an opening delimiter is missing", call(f"city:Rome{S}") + OSLO + " Text.", [IN_ROME, IN_OSLO], " Text."),
    Answer("the same, a comma in the string", call(f"city:Rome, Italy{S},days:5"), [("weather", {"city": "Rome, Italy", "days": 5})]),
    Answer("a closing delimiter is missing", call(f"city:{S}Rome") + OSLO + " Text.", [IN_ROME, IN_OSLO], " Text."),
    Answer("the same, a key behind it", call(f"city:{S}Rome,zip:{S}1{S}") + OSLO, [("weather", {"city": "Rome", "zip": "1"}), IN_OSLO]),
    Answer("a doubled opening delimiter", call(f"city:{S}{S}Rome{S}") + OSLO, [IN_ROME, IN_OSLO]),
    Answer("a doubled closing delimiter", call(f"city:{S}Rome{S}{S},days:5") + OSLO, [("weather", {"city": "Rome", "days": 5}), IN_OSLO]),
    Answer("a delimiter inside a string", call(f"city:{S}Ro{S}me{S}") + OSLO, [IN_ROME, IN_OSLO]),
    Answer("a delimiter before a key", call(f"{S}city:{S}Rome{S}") + OSLO, [IN_ROME, IN_OSLO]),
    Answer("a delimiter behind the bracket", call(f"city:{S}Rome")[: -len("<tool_call|>")] + S + "<tool_call|>" + OSLO, [IN_ROME, IN_OSLO]),
)
THOUGHTS = (
    Answer("a thought, then a call", f"<|channel>thought\nRome.\n<channel|>{ROME}", [IN_ROME], thought="Rome.", thinking=True),
    Answer("a call inside a thought that is not closed", f"<|channel>thought\nRome.{ROME}", [IN_ROME], thought="Rome.", thinking=True),
    Answer(
        "a call's string with thought markers",
        call(f"city:{S}<|channel>thought\nx<channel|>{S}"),
        [("weather", {"city": "<|channel>thought\nx<channel|>"})],
    ),
    Answer(
        "a second thought",
        f"<|channel>thought\na\n<channel|>One.<|channel>thought\nb\n<channel|>{ROME}",
        [IN_ROME], "One.", "a\nb", True,
    ),
    Answer(
        "a call without a marker behind text and a second thought",
        f"<|channel>thought\na\n<channel|>One.<|channel>thought\nb\n<channel|>call:weather{{city:{S}Rome{S}}}",
        [IN_ROME], "One.", "a\nb", True,
    ),
    Answer("no thought although it was asked for", "Rome.", text="Rome.", thinking=True),
    Answer("an empty thought", "<|channel>thought\n<channel|>Rome.", text="Rome."),
    Answer("a thought's end without its beginning", "Rome.<channel|>", text="Rome."),
)  # fmt: skip


def read(answer: Answer, size: int = 0, declared: dict[str, Any] = TOOLS, opened: bool = False) -> Answer | str:
    """The answer as a client gets it, streamed in pieces of ``size`` characters or (0) whole; or what went wrong.

    ``declared`` are the tools' parameters; ``opened``: the prompt ends inside a thought.
    """
    from sglang.srt.entrypoints.openai.protocol import Function, Tool
    from sglang.srt.function_call.function_call_parser import FunctionCallParser
    from sglang.srt.parser.reasoning_parser import ReasoningParser

    tools = [Tool(type="function", function=Function(name=name, parameters=schema)) for name, schema in declared.items()]
    prefix = "<|channel>" if opened else ""
    request: Any = SimpleNamespace(chat_template_kwargs={"enable_thinking": answer.thinking}, _response_parser_prefix=prefix)
    thoughts = ReasoningParser("gemma4", bool(size), answer.thinking, request, tool_call_parser_active=True)
    parser = FunctionCallParser(tools, "gemma4")
    try:
        with _within(LIMIT):
            if not size:
                reasoning, rest = thoughts.parse_non_stream(answer.wrote)
                text, items = parser.parse_non_stream(rest) if parser.has_tool_call(rest) else (rest, [])
                return _answer(answer, reasoning or "", text, [[item.name, item.parameters] for item in items])
            return _answer(answer, *_stream(thoughts, parser, [answer.wrote[at : at + size] for at in range(0, len(answer.wrote), size)]))
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _stream(thoughts: Any, parser: Any, pieces: list[str]) -> tuple[str, str, list[list[str]]]:
    """Thoughts, text and calls of a streamed answer, joined as a client joins them."""
    read = [thoughts.parse_stream_chunk(piece) for piece in pieces] + [thoughts.parse_stream_end()]
    parsed = [parser.parse_stream_chunk(rest or "") for _, rest in read] + [parser.parse_stream_end()]
    calls: dict[int, list[str]] = {}
    for item in (item for _, items in parsed for item in items):
        call = calls.setdefault(item.tool_index, ["", ""])
        call[0] += item.name or ""
        call[1] += item.parameters
    return "".join(thought or "" for thought, _ in read), "".join(text or "" for text, _ in parsed), [calls[n] for n in sorted(calls)]


def _answer(asked: Answer, thought: str, text: str, calls: list[list[str]]) -> Answer:
    """What was read, in the form of what was asked."""

    def value(arguments: str) -> Any:
        try:
            return json.loads(arguments)
        except ValueError:
            return arguments

    return Answer(asked.name, asked.wrote, [(name, value(arguments)) for name, arguments in calls], text, thought, asked.thinking)


@contextlib.contextmanager
def _within(seconds: int) -> Iterator[None]:
    def late(*_: object) -> None:
        raise TimeoutError(f"still parsing after {seconds} s")

    before = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def differences(answers: tuple[Answer, ...]) -> list[str]:
    """A line for each answer that a client does not get as it should, whole or streamed."""
    lines = []
    for answer in answers:
        for how, size in (("whole", 0), ("streamed", 4)):
            seen = read(answer, size)
            if seen != answer:
                got = seen if isinstance(seen, str) else f"calls {seen.calls}, text {seen.text!r}, thought {seen.thought!r}"
                lines.append(f"{answer.name}, {how}: {got}")
    return lines


def load() -> None:
    """SGLang, with the package where its switch says so."""
    from sglang_gemma4.cpu.environment import prepare_this_process

    prepare_this_process()
    from sglang.srt.plugins import load_plugins

    load_plugins()


def main(answers: tuple[Answer, ...] = (*CALLS, *BRACKETS, *DELIMITERS)) -> int:
    """Every answer, whole and streamed; how many a client gets wrong."""
    load()
    wrong = differences(answers)
    print(*wrong, sep="\n")
    return int(case.verdict(f"0 of {2 * len(answers)} wrong", f"{len(wrong)} of {2 * len(answers)} wrong"))


if __name__ == "__main__":
    sys.exit(main())
