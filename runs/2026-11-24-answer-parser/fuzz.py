"""Fuzz the parser of tool calls and thoughts beside stock's, and make REPORT.md: python runs/2026-11-24-answer-parser/fuzz.py [SECONDS]

Three parts: texts of markers in any order, whole and cut; generated calls through the chat template and back; long texts made to be slow.
No GPU, no engine: the parsers are what SGLang's chat endpoint calls, in one process, one core.
"""

import itertools
import json
import os
import platform
import random
import signal
import statistics
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "crash_repro")]
LIMIT = 1.0  # second of processor time for one text; what takes longer holds up every request of the server's event loop

import tool_answers  # noqa: E402

tool_answers.load()

from hypothesis import HealthCheck, Phase, given, settings  # noqa: E402
from sglang.srt.entrypoints.openai.protocol import Function, Tool  # noqa: E402
from sglang.srt.function_call.function_call_parser import FunctionCallParser  # noqa: E402
from sglang.srt.function_call.gemma4_detector import Gemma4Detector  # noqa: E402
from sglang.srt.parser.reasoning_parser import Gemma4Detector as StockThoughts  # noqa: E402
from sglang.srt.parser.reasoning_parser import ReasoningParser  # noqa: E402

from tests.harness.inputs import answers  # noqa: E402

PARSERS = FunctionCallParser.ToolCallParserEnum, ReasoningParser.DetectorMap
OURS = PARSERS[0]["gemma4"], PARSERS[1]["gemma4"]
STOCK = Gemma4Detector, StockThoughts
TOOLS = [Tool(type="function", function=Function(name=name, parameters=schema)) for name, schema in tool_answers.TOOLS.items()]


def use(arm: tuple[type, type]) -> None:
    PARSERS[0]["gemma4"], PARSERS[1]["gemma4"] = arm


def read(text: str, pieces: list[str] | None, tools: list[Tool] = TOOLS) -> tuple[str, str, list[list[str]]]:
    """Thought, text and calls, as the chat endpoint reads them."""
    thoughts = ReasoningParser("gemma4", pieces is not None, False, tool_call_parser_active=True)
    parser = FunctionCallParser(tools, "gemma4")
    if pieces is not None:
        return tool_answers._stream(thoughts, parser, pieces)
    thought, rest = thoughts.parse_non_stream(text)
    said, items = parser.parse_non_stream(rest) if parser.has_tool_call(rest) else (rest, [])
    return thought or "", said, [[item.name, item.parameters] for item in items]


def timed(function: Callable[[], Any], limit: float = LIMIT) -> tuple[Any, float, str]:
    """The result, the seconds of the processor, and what went wrong: "", "slow" or an error's name."""

    armed = [True]

    def late(*_: object) -> None:
        if armed[0]:
            raise TimeoutError

    signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, limit)
    started = time.process_time()
    try:
        return function(), time.process_time() - started, ""
    except TimeoutError:
        return None, limit, "slow"
    except RecursionError:
        return None, time.process_time() - started, "RecursionError"
    except Exception as error:
        return None, time.process_time() - started, type(error).__name__
    finally:
        armed[0] = False
        signal.setitimer(signal.ITIMER_PROF, 0)


def marker_texts(seconds: float, seed: int) -> dict[str, Any]:
    """Random texts for ``seconds`` on each arm, the same ones: hangs, errors, cuts that change the answer, the worst time."""
    found = {}
    for name, arm in (("package", OURS), ("stock", STOCK)):
        use(arm)
        chance = random.Random(seed)
        count = hangs = errors = cut_differs = 0
        worst, characters = (0.0, ""), 0
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            text = "".join(chance.choice(answers.PIECES) for _ in range(chance.randint(1, 40)))
            cuts = sorted({0, len(text), *(chance.randint(0, len(text)) for _ in range(chance.randint(0, 12)))})
            pieces = [text[begin:end] for begin, end in itertools.pairwise(cuts)]
            count, characters = count + 1, characters + len(text)
            whole, took, wrong = timed(lambda text=text: read(text, None))
            streamed, took_streamed, wrong_streamed = timed(lambda text=text, pieces=pieces: read(text, pieces))
            hangs += "slow" in (wrong, wrong_streamed)
            errors += any(one not in ("", "slow") for one in (wrong, wrong_streamed))
            cut_differs += not (wrong or wrong_streamed) and whole != streamed
            worst = max(worst, (max(took, took_streamed), text))
        found[name] = {"texts": count, "characters": characters, "seconds": seconds, "hangs": hangs, "errors": errors}
        found[name] |= {"cut differs": cut_differs, "worst ms": round(worst[0] * 1000, 2), "worst text": worst[1]}
    return found


def round_trips(count: int) -> dict[str, Any]:
    """Generated calls, rendered by the chat template: how many come back as they were, whole and in pieces."""
    made: list[Any] = []

    @settings(
        max_examples=count, database=None, derandomize=True, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
    )
    @given(calls=answers.CALLS)
    def collect(calls: Any) -> None:
        made.append(calls)

    collect()
    found: dict[str, Any] = {"calls": sum(map(len, made))}
    for name, arm, some in (("package", OURS, made), ("stock", STOCK, made[:100])):  # stock waits a second for each that never ends
        use(arm)
        right = {"whole": 0, "streamed": 0}
        took, failed = 0.0, []
        for calls in some:
            tools = [Tool(type="function", function=Function(name=tool, parameters=schema)) for tool, (schema, _) in calls]
            text = answers.rendered([(tool, value) for tool, (_, value) in calls])
            for how, pieces in (("whole", None), ("streamed", [text[at : at + 3] for at in range(0, len(text), 3)])):
                seen, seconds, wrong = timed(lambda text=text, pieces=pieces, tools=tools: read(text, pieces, tools))
                took += seconds
                if wrong:
                    failed.append([how, wrong, text])
                elif seen[:2] == ("", ""):
                    try:
                        values = [(tool, json.loads(arguments)) for tool, arguments in seen[2]]
                    except ValueError:
                        continue
                    right[how] += answers.same(values, [(tool, value) for tool, (_, value) in calls])
                else:
                    failed.append([how, "text", text])
        found[name] = {"answers": len(some), "right": right, "seconds": round(took, 1), "failed": failed[:5]}
    return found


def long_texts() -> list[dict[str, Any]]:
    """The slow texts at 50,000 and 200,000 characters, whole and a character at a time."""
    rows = []
    for name, text in answers.SLOW.items():
        row: dict[str, Any] = {"text": name}
        for arm_name, arm in (("package", OURS), ("stock", STOCK)):
            use(arm)
            for length in (50_000, 200_000):
                part = text[:length]
                for how, pieces in (("whole", None), ("streamed", list(part))):
                    _, seconds, wrong = timed(lambda part=part, pieces=pieces: read(part, pieces), 10.0 if arm is OURS else 3.0)
                    row[f"{arm_name} {how} {length}"] = wrong or round(seconds, 3)
        rows.append(row)
    return rows


def behaviours() -> list[dict[str, Any]]:
    """Each answer of crash_repro/tool_answers.py: right on each arm, whole and streamed."""
    rows = []
    for answer in (*tool_answers.CALLS, *tool_answers.THOUGHTS):
        row: dict[str, Any] = {"answer": answer.name}
        for name, arm in (("package", OURS), ("stock", STOCK)):
            use(arm)
            seen = {how: tool_answers.read(answer, size) for how, size in (("whole", 0), ("streamed", 4))}
            row[name] = {
                how: one == answer or (one if isinstance(one, str) else [one.calls, one.text, one.thought]) for how, one in seen.items()
            }
        rows.append(row)
    return rows


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 120.0
    import logging

    logging.disable(logging.WARNING)  # a line for each call that is cut off or not declared
    raw = {
        "machine": {"processor": platform.machine(), "cores": len(os.sched_getaffinity(0)), "python": platform.python_version()},
        "versions": {name: version(name) for name in ("sglang", "sglang-gemma4", "hypothesis")},
        "behaviours": behaviours(),
        "markers": marker_texts(seconds, seed=0),
        "round trips": round_trips(5000),
        "long": long_texts(),
    }
    (HERE / "raw.json").write_text(json.dumps(raw, indent=1, ensure_ascii=False) + "\n")
    (HERE / "REPORT.md").write_text(report(raw))


VLLM = {
    "two calls of one tool": "right",
    "the end marker inside a string": "the token ends the call",
    "braces inside a string": "right",
    "brackets in strings of nested arrays": "right",
    "arrays of objects of arrays": "right",
    "null stays null": "by the schema",
    "numbers as JSON has them": "by the schema",
    "a string where the schema wants one": "right",
    "text between and behind calls": "right",
    "a call without its end marker": "right",
    "a call without its last brace": "right",
    "an answer cut off in a call": "closed as if it were whole",
    "keys in delimiters": "right",
    "text that is no call": "dropped",
    "a thought, then a call": "right",
    "a call inside a thought that is not closed": "right",
    "a second thought": "right",
    "no thought although it was asked for": "right",
    "an empty thought": "right",
    "a thought's end without its beginning": "right",
}
"""What docs.vllm.ai says of vllm.parser.gemma4 and its transition table, read, not run; what neither says is left open."""


def report(raw: dict[str, Any]) -> str:
    """REPORT.md."""
    markers, trips, long = raw["markers"], raw["round trips"], raw["long"]
    ours = [row[f"package {how} 200000"] for row in long for how in ("whole", "streamed")]
    growth = [row["package streamed 200000"] / row["package streamed 50000"] for row in long]
    stock_slow = [row["text"] for row in long if any(isinstance(row[key], str) for key in row if key.startswith("stock"))]
    wrong = {arm: sum(row[arm][how] is not True for row in raw["behaviours"] for how in row[arm]) for arm in ("package", "stock")}
    count = 2 * len(raw["behaviours"])

    def cell(row: dict[str, Any], arm: str) -> str:
        seen = row[arm]
        if seen["whole"] is True and seen["streamed"] is True:
            return "right"
        told = [how for how in seen if seen[how] is not True]
        hangs = any(isinstance(seen[how], str) and "parsing after" in seen[how] for how in told)
        return f"**{'never ends' if hangs else 'wrong'}**" + ("" if len(told) == 2 else f" {told[0]}")

    def seconds(value: Any) -> str:
        return value if isinstance(value, str) else f"{value:.2f}"

    lines = [
        f"Of {count} readings of {count // 2} kinds of answer stock SGLang gets {wrong['stock']} wrong and the package {wrong['package']}; "
        f"{markers['package']['texts']:,} random texts hung the package {markers['package']['hangs']} times, "
        f"and how a text was cut changed {markers['package']['cut differs']:,} of them (stock: {markers['stock']['cut differs']:,}).",
        "",
        f"One core of a shared machine, Python {raw['machine']['python']}, SGLang {raw['versions']['sglang']}; no engine: SGLang's own "
        "`ReasoningParser` and `FunctionCallParser`, as its chat endpoint calls them, with stock's classes and with the package's. A text "
        f"that takes more than {LIMIT:.0f} s of the processor counts as hung. Made by `python runs/2026-11-24-answer-parser/fuzz.py 40`.",
        "",
        "## Behaviours",
        "`crash_repro/tool_answers.py` has each text and what a client should get. vLLM's column is what its documentation and the table "
        "of transitions in `vllm/parser/gemma4.py` say (main, read on 2026-11-24); it was not run.",
        "",
        "| answer | stock | package | vLLM |",
        "| --- | --- | --- | --- |",
        *(
            f"| {row['answer']} | {cell(row, 'stock')} | {cell(row, 'package')} | {VLLM.get(row['answer'], 'not said')} |"
            for row in raw["behaviours"]
        ),
        "",
        "## Random texts of markers",
        "",
        "| | texts | characters | hung | errors | the cut changed the answer | worst text |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for arm in ("stock", "package"):
        row = markers[arm]
        worst = "hung" if row["hangs"] else f"{row['worst ms']} ms"
        lines.append(
            f"| {arm} | {row['texts']:,} in {row['seconds']:.0f} s | {row['characters']:,} | {row['hangs']} | {row['errors']} | "
            f"{row['cut differs']:,} | {worst} |"
        )
    lines += [
        "",
        "## Generated calls through the chat template and back",
        f"Answers of one to three calls, {trips['calls']:,} calls in all, arguments after generated JSON schemas; right: every name and "
        "value, types included.",
        "",
        "| | answers | right, whole | right, in pieces of 3 characters |",
        "| --- | --- | --- | --- |",
        *(
            f"| {arm} | {trips[arm]['answers']:,} | {trips[arm]['right']['whole']:,} | {trips[arm]['right']['streamed']:,} |"
            for arm in ("stock", "package")
        ),
        "",
        "Stock read the first 100 only: it waits the whole limit for each that never ends.",
        "",
        "## Long texts",
        f"Seconds of the processor; streamed: a character at a time. The package's worst 200,000 characters take {max(ours):.2f} s; "
        f"four times the characters take it {min(growth):.1f} to {max(growth):.1f} times the seconds (median "
        f"{statistics.median(growth):.1f}). More than 3 s on stock: {len(stock_slow)} of the {len(long)}, streamed.",
        "",
        "| text | stock 50,000 whole | streamed | 200,000 whole | streamed | package 50,000 whole | streamed | 200,000 whole | streamed |",
        "| --- " * 9 + "|",
        *(
            f"| {row['text']} | "
            + " | ".join(
                seconds(row[f"{arm} {how} {size}"])
                for arm in ("stock", "package")
                for size in (50_000, 200_000)
                for how in ("whole", "streamed")
            )
            + " |"
            for row in long
        ),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
