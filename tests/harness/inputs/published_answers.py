"""Answers of SGLang's and vLLM's own tests of their Gemma 4 parsers, with what is read of them: inputs and results, as data.

Sources, as of November 2026. vLLM: ``tests/tool_parsers`` (``test_gemma4_tool_parser.py``, ``..._utils.py``,
``..._regex_and_bare_calls.py``, ``..._required_enforcement.py``), ``tests/reasoning`` (``test_gemma4_*.py``), ``tests/parser/engine``
(``test_gemma4_*.py``, the scenarios of ``trace_builder.py``) and its Rust parser. SGLang, ``test/registered/unit``: ``function_call``
(``test_gemma4_detector*.py``, ``test_streaming_parity.py``), ``parser`` (``test_reasoning_parser.py``,
``test_reasoning_streaming_parity.py``) and three further suites proposed to it. What they ask of arguments alone is a call of ``record``.
"""

from dataclasses import dataclass, field
from typing import Any

from tests.harness.inputs.published_arguments import ARGUMENTS, ARGUMENTS_OTHERWISE, REJECTED, Q, strings

Call = tuple[str, dict[str, Any]]


@dataclass(frozen=True)
class Published:
    """What a model wrote, and what a client should get. ``otherwise``: why that is not what they expect; "" if it is."""

    wrote: str
    calls: list[Call] = field(default_factory=list)
    text: str = ""
    thought: str = ""
    thinking: bool = False
    opened: bool = False
    """The prompt ends inside a thought."""
    otherwise: str = ""


def call(name: str, arguments: str) -> str:
    return f"<|tool_call>call:{name}{{{arguments}}}<tool_call|>"


def text_of(name: str, **values: Any) -> dict[str, Any]:
    """The schema of a tool."""
    kinds = {str: "string", int: "integer", float: "number", bool: "boolean"}
    types = {key: {"type": kinds[kind]} if isinstance(kind, type) else kind for key, kind in values.items()}
    return {name: {"type": "object", "properties": types}}


FILTERS = {"type": "object", "properties": {"language": {"type": "string"}, "min_stars": {"type": "integer"}}}
NULLABLE = {"type": ["string", "null"]}
FREE = "record get_time get_status get_weather set_status set_config set Edit write_file todowrite find send_message read_file " + (
    "complex_function f"
)
TOOLS: dict[str, dict[str, Any] | None] = {
    **dict.fromkeys(FREE.split()),
    **text_of("get_current_weather", city=str, state=str, unit=str),
    **text_of("update_record", zipcode=str, count=int),
    **text_of("configure", enabled=bool, ratio=float, label=str, value=NULLABLE),
    **text_of("search", query=str, filters=FILTERS),
    **text_of("web_search", query=str, limit=int),
    **text_of("bash", command=str, description=str),
}

# What is read of whole answers.
WHERE = {"city": "Dallas", "state": "TX", "unit": "fahrenheit"}
READ, WEATHER = {"path": "/tmp/test.txt"}, call("get_current_weather", strings(**WHERE))
HOST = {"command": "hostname", "description": "Get hostname"}
COMPLEX = f"{strings(query='vllm parser')},filters:{{{strings(language='python')},min_stars:100}}" + (
    f",tags:[{Q}ml{Q},{Q}inference{Q}],limit:10,verbose:true"
)
COMPLEX_READ = {
    "query": "vllm parser",
    "filters": {"language": "python", "min_stars": 100},
    "tags": ["ml", "inference"],
    "limit": 10,
    "verbose": True,
}
LONG = "The user wants me to:\n1. Perform some reasoning.\n2. Call a tool.\n\nI should use `bash` with `command='hostname'`."
BATCH = {"args": "-batch -ex run /tmp/poc"}
EDIT = strings(file_path="src/env.py", old_string="old_val", new_string="new_val")
EDITED = {"file_path": "src/env.py", "old_string": "old_val", "new_string": "new_val", "replace_all": False}
LONDON, PARIS = {"location": "London"}, {"location": "Paris"}
TYPES = "vLLM's unified parser leaves values as strings where no schema is declared; we read what they are"
STREAMS = "white space before a call streams as it comes; vLLM drops it"
STOPS = "an end token ends the answer and is in no text"
ENDED = "SGLang and vLLM give a call without its end marker back as text"
UNDECLARED = "a call of an undeclared tool stays content"


def thought(text: str) -> str:
    return f"<|channel>thought\n{text}<channel|>"


# fmt: off
ANSWERS: list[Published] = [
    # text and calls
    Published("Hello, how can I help you today?", text="Hello, how can I help you today?"),
    Published("The weather in Beijing is sunny.", text="The weather in Beijing is sunny."),
    Published("I cannot call a tool now, so here is an answer.", text="I cannot call a tool now, so here is an answer."),
    Published("<", text="<"),
    Published("", text=""),
    Published(call("get_weather", strings(**LONDON)), [("get_weather", LONDON)]),
    Published(call("get_weather", strings(city="Hà Nội", unit="celsius")), [("get_weather", {"city": "Hà Nội", "unit": "celsius"})]),
    Published("Let me check. " + call("get_weather", strings(**PARIS)), [("get_weather", PARIS)], "Let me check. "),
    Published(
        call("get_weather", strings(**LONDON)) + call("get_time", strings(**LONDON)), [("get_weather", LONDON), ("get_time", LONDON)]
    ),
    Published(call("read_file", "path:a") + call("read_file", "path:b"), [("read_file", {"path": "a"}), ("read_file", {"path": "b"})]),
    Published(
        call("search", strings(query="x")) + call("get_weather", strings(city="Y")),
        [("search", {"query": "x"}), ("get_weather", {"city": "Y"})],
    ),
    Published(
        "Hello! " + call("get_weather", strings(**PARIS)) + " Let me also check " + call("get_time", strings(timezone="UTC")),
        [("get_weather", PARIS), ("get_time", {"timezone": "UTC"})],
        "Hello!  Let me also check ",
    ),
    Published(call("get_weather", strings(**PARIS)) + "<div>", [("get_weather", PARIS)], "<div>"),
    Published("Some text before " + call("get_weather", strings(**PARIS)) + " after", [("get_weather", PARIS)], "Some text before  after"),
    Published(
        call("get_weather", f"{strings(location='New York')},nested:[1, 2, {{{strings(inner='val')}}}]"),
        [("get_weather", {"location": "New York", "nested": [1, 2, {"inner": "val"}]})],
    ),
    Published(
        call("complex_function", f"nested:{{{strings(inner='value')}}},list:[{Q}a{Q},{Q}b{Q}]"),
        [("complex_function", {"nested": {"inner": "value"}, "list": ["a", "b"]})],
    ),
    Published(call("get_status", ""), [("get_status", {})]),
    Published(call("f", ""), [("f", {})]),
    Published(call("Edit", f"{EDIT},replace_all:false"), [("Edit", EDITED)]),
    Published(call("todowrite", strings(content="Buy milk")), [("todowrite", {"content": "Buy milk"})]),
    Published(
        call("get_weather", strings(location="San Francisco, CA", unit="celsius")),
        [("get_weather", {"location": "San Francisco, CA", "unit": "celsius"})],
    ),
    Published(
        call("send_message", strings(destination="456 Oakwood Avenue, Rivermist, 83214")),
        [("send_message", {"destination": "456 Oakwood Avenue, Rivermist, 83214"})],
    ),
    Published("<|tool_call>garbage{x:1}<tool_call|>", text="<|tool_call>garbage{x:1}<tool_call|>"),
    Published("<|tool_call>not a call<tool_call|>", text="<|tool_call>not a call<tool_call|>"),
    Published(f"<|tool_call>call:get_weather{{city:{Q}Beijing<tool_call|>", [("get_weather", {"city": "Beijing"})]),
    Published(call("   ", "") + call("get_status", ""), [("get_status", {})], call("   ", "")),
    Published(
        call("get_weather", "bad:]") + call("get_weather", strings(location="NY")),
        [("get_weather", {"bad": ""}), ("get_weather", {"location": "NY"})], otherwise=REJECTED,
    ),
    Published(call("get_weather", ":") + call("get_status", ""), [("get_weather", {"": ""}), ("get_status", {})], otherwise=REJECTED),
    Published(f"prefix {call('get_weather', ':')} suffix", [("get_weather", {"": ""})], "prefix  suffix", otherwise=REJECTED),
    Published("<|tool_call><tool_call|>Content after empty tools.", text="Content after empty tools."),
    Published("<|tool_call>call:get_weather{city:x}", [("get_weather", {"city": "x"})], otherwise=ENDED),
    Published("<|tool_call>call:get_status{}", [("get_status", {})], otherwise=ENDED),
    Published(call("unknown_func", strings(arg="val")), text=call("unknown_func", strings(arg="val")), otherwise=UNDECLARED),
    Published(call("no_such_tool", "city:x"), text=call("no_such_tool", "city:x"), otherwise=UNDECLARED),
    Published(f"<|tool_call>call:find{{{strings(**BATCH)}}}<turn|>", [("find", BATCH)], "<turn|>", otherwise=STOPS),
    Published("The answer is 4.<turn|>", text="The answer is 4.<turn|>", otherwise=STOPS),
    Published("The answer is 4.<eos>", text="The answer is 4.<eos>", otherwise=STOPS),
    # values by their schema
    Published(call("update_record", "zipcode:12345"), [("update_record", {"zipcode": "12345"})]),
    Published(call("update_record", "zipcode:90210,count:42"), [("update_record", {"zipcode": "90210", "count": 42})]),
    Published(call("configure", "enabled:true"), [("configure", {"enabled": True})]),
    Published(call("configure", "ratio:5.0"), [("configure", {"ratio": 5.0})], otherwise="vLLM writes 5, which is the same number"),
    Published(call("configure", "value:null"), [("configure", {"value": None})]),
    Published(call("configure", "label:null"), [("configure", {"label": None})], otherwise="the released template writes None as null"),
    Published(
        call("configure", "enabled:true,ratio:3.14,label:hello"), [("configure", {"enabled": True, "ratio": 3.14, "label": "hello"})]
    ),
    Published(
        call("search", f"{strings(query='vllm')},filters:{{language:python,min_stars:100}}"),
        [("search", {"query": "vllm", "filters": {"language": "python", "min_stars": 100}})],
    ),
    Published(
        call("set_status", "is_active:true,count:42,score:3.14"), [("set_status", {"is_active": True, "count": 42, "score": 3.14})],
        otherwise=TYPES,
    ),
    Published(call("set_config", "count:42,active:true"), [("set_config", {"count": 42, "active": True})], otherwise=TYPES),
    Published(call("set", "flag:false"), [("set", {"flag": False})]),
    # thoughts
    Published("This is content", text="This is content", thinking=True),
    Published("<|channel>This is reasoning", thought="This is reasoning", thinking=True),
    Published("<|channel>A section<channel|>The rest", text="The rest", thought="A section", thinking=True),
    Published("<|channel>A section<channel|>", thought="A section", thinking=True),
    Published("<|channel>This\nThat<channel|>The rest\nThat", text="The rest\nThat", thought="This\nThat", thinking=True),
    Published("Before\n<|channel>A section<channel|>\nThe rest", text="Before\n\nThe rest", thought="A section", thinking=True),
    Published(thought("Actual reasoning here") + "Final answer", text="Final answer", thought="Actual reasoning here", thinking=True),
    Published(thought("") + "The epoch timestamp.", text="The epoch timestamp.", thinking=True),
    Published(thought(""), thinking=True),
    Published(thought("Line1\nLine2") + "Answer", text="Answer", thought="Line1\nLine2", thinking=True),
    Published("<|channel>thousand reasons<channel|>Done", text="Done", thought="thousand reasons", thinking=True),
    Published("<|channel>thought", thinking=True),
    Published("<|channel>thought\nStill thinking...", thought="Still thinking...", thinking=True),
    Published("A section<channel|>The rest", text="A sectionThe rest", thinking=True),
    Published("A section<channel|>", text="A section", thinking=True),
    Published("Direct answer without thinking.", text="Direct answer without thinking."),
    Published(f"thought\n{LONG}<channel|>{WEATHER}", [("get_current_weather", WHERE)], thought=LONG, thinking=True),
    Published("Sure, it is 42<channel|>Hello world", text="Hello world", thought="Sure, it is 42", thinking=True, opened=True),
    Published(thought("Reasoning body") + "Final content", text="Final content", thought="Reasoning body", thinking=True, opened=True),
    Published(thought("Reasoning body") + "Final content", text="Final content", thought="Reasoning body", thinking=True),
    Published(
        "This should be reasoning<channel|>The answer.", text="This should be reasoningThe answer.", thinking=True,
        otherwise="SGLang's test forces a thought; a prompt that did not open one leaves the answer without, as vLLM streams it",
    ),
    # thoughts and calls
    Published("<|tool_call>", text="<|tool_call>", thinking=True),
    Published(thought(LONG) + WEATHER, [("get_current_weather", WHERE)], thought=LONG, thinking=True),
    Published(
        thought(LONG) + call("bash", strings(**HOST)) + call("bash", strings(command="date")),
        [("bash", HOST), ("bash", {"command": "date"})], thought=LONG, thinking=True,
    ),
    Published(
        thought("I need to find files") + call("find", strings(path="research")), [("find", {"path": "research"})],
        thought="I need to find files", thinking=True,
    ),
    Published(
        thought('The user wants "Raleigh".') + call("get_weather", strings(city="Raleigh")), [("get_weather", {"city": "Raleigh"})],
        thought='The user wants "Raleigh".', thinking=True,
    ),
    Published(thought("Let me check.") + call("read_file", strings(**READ)), [("read_file", READ)], thought="Let me check.", thinking=True),
    Published(
        thought("Both.") + call("bash", strings(**HOST)) + WEATHER, [("bash", HOST), ("get_current_weather", WHERE)],
        thought="Both.", thinking=True,
    ),
    Published(thought("Let me think.") + "The answer is 42.", text="The answer is 42.", thought="Let me think.", thinking=True),
    Published(call("read_file", strings(**READ)), [("read_file", READ)], thinking=True),
    Published(thought("A complex query.") + call("search", COMPLEX), [("search", COMPLEX_READ)], thought="A complex query.", thinking=True),
    Published(
        thought("Analyze.") + "Checking the weather now." + WEATHER, [("get_current_weather", WHERE)], "Checking the weather now.",
        "Analyze.", True,
    ),
    Published("\n\n" + WEATHER, [("get_current_weather", WHERE)], "\n\n", otherwise=STREAMS),
    Published(
        thought("Check.") + "\n\n" + call("read_file", strings(**READ)), [("read_file", READ)], "\n\n", "Check.", True, otherwise=STREAMS
    ),
    # calls without their marker
    Published(
        thought("I need it.\n") + call("bash", strings(command="cat a.c"))[12:-12], [("bash", {"command": "cat a.c"})],
        thought="I need it.", thinking=True,
    ),
    Published("<|tool_call>:call:bash{command:<|\"|>pytest<|\"|>}", [("bash", {"command": "pytest"})]),
    Published("some prose\ncall:bash{command:<|\"|>make<|\"|>}", [("bash", {"command": "make"})], "some prose\n"),
    Published("call:get_weather{location:Tokyo}", [("get_weather", {"location": "Tokyo"})]),
    Published("<call>get_weather{city:x}", text="<call>get_weather{city:x}", otherwise="vLLM guesses a call without call:"),
    Published("Just some reasoning text with no call in it.", text="Just some reasoning text with no call in it."),
]
# fmt: on


def cases() -> list[Published]:
    """All of them, arguments as calls."""
    recorded = [Published(call("record", wrote), [("record", read)]) for wrote, read in ARGUMENTS]
    others = [Published(call("record", wrote), [("record", read)], otherwise=why) for wrote, read, why in ARGUMENTS_OTHERWISE]
    return [*recorded, *others, *ANSWERS]
