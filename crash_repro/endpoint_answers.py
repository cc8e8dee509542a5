"""One list of answers at /v1/chat/completions, /v1/responses and /v1/messages, whole and streamed. Needs no GPU and no engine."""

import json
import sys
from typing import Any

import case  # type: ignore[import-not-found]
import scripted_server  # type: ignore[import-not-found]
import tool_answers  # type: ignore[import-not-found]

PARSED = ("chat", "responses", "messages")
SIZES = (None, 1, 2, 3, 4, 5, 6, 7, 8, 11, 16, 23, 32, 64, 10_000)
"""Whole, and streamed in pieces of so many characters."""
FEW = (None, 1, 5, 10_000)
LISTS = (tool_answers.CALLS, tool_answers.THOUGHTS, tool_answers.BRACKETS, tool_answers.DELIMITERS)
ANSWERS = tuple(answer for answers in LISTS for answer in answers if "nested arrays" not in answer.name)
"""Without the one that stock parses for ever."""
OPENED = '{{- "<|channel>thought\\n" if add_generation_prompt and enable_thinking -}}'
"""At the end of a template: the prompt opens the thought, as the released templates do behind a tool's result."""


def value(arguments: str, cut: bool) -> Any:
    """A call's arguments; those that the answer cut off as far as they came, which /v1/messages closes where it answers whole."""
    from sglang_gemma4.serving.past_calls import closed

    try:
        return json.loads(arguments)
    except ValueError:
        return closed(arguments) if cut else arguments


def read(server: Any, endpoint: str, answer: Any, size: int | None) -> Any:
    """The answer as a client of ``endpoint`` gets it, or what went wrong."""
    cut = "cut off" in answer.name
    try:
        seen = server.ask(endpoint, answer.wrote, size, thinking=answer.thinking)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    calls = [(name, value(arguments, cut)) for name, arguments in seen.calls]
    return type(answer)(answer.name, answer.wrote, calls, seen.text, seen.thought, answer.thinking)


def wanted(answer: Any) -> Any:
    """The answer, with arguments that were cut off closed."""
    calls = [(name, value(given, True) if isinstance(given, str) else given) for name, given in answer.calls]
    return type(answer)(answer.name, answer.wrote, calls, answer.text, answer.thought, answer.thinking)


def differences(server: Any, answers: tuple[Any, ...] = ANSWERS, sizes: tuple[int | None, ...] = FEW) -> list[str]:
    """A line for each answer that a client of an endpoint does not get as it should."""
    lines = []
    for answer in answers:
        for endpoint in PARSED:
            for size in sizes:
                seen = read(server, endpoint, answer, size)
                if seen != wanted(answer):
                    got = seen if isinstance(seen, str) else f"calls {seen.calls}, text {seen.text!r}, thought {seen.thought!r}"
                    lines.append(f"{answer.name}, {endpoint}, {'whole' if size is None else size}: {got}")
    return lines


def main() -> int:
    """Every answer at every endpoint; how many a client gets wrong."""
    tool_answers.load()
    wrong = differences(scripted_server.Endpoints())
    print(*wrong, sep="\n")
    total = len(ANSWERS) * len(PARSED) * len(FEW)
    return int(case.verdict(f"0 of {total} wrong", f"{len(wrong)} of {total} wrong"))


if __name__ == "__main__":
    sys.exit(main())
