"""Arguments that stock's parser reads for ever, in the process that serves every request. Needs no GPU and no engine."""

import sys

import case  # type: ignore[import-not-found]
import tool_answers  # type: ignore[import-not-found]

ANSWER = tool_answers.Answer("brackets in a string", tool_answers.call('a:[[<|"|>x]y<|"|>],2]'), [("weather", {"a": [["x]y"], 2]})])


def main() -> int:
    """One answer, whole, within two seconds."""
    tool_answers.load()
    return int(case.verdict(ANSWER, tool_answers.read(ANSWER)))


if __name__ == "__main__":
    sys.exit(main())
