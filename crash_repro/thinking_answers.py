"""Answers with thoughts: a second one, one that is not closed, one that was asked for and did not come. Needs no GPU and no engine."""

import sys

import tool_answers  # type: ignore[import-not-found]

if __name__ == "__main__":
    sys.exit(tool_answers.main(tool_answers.THOUGHTS))
