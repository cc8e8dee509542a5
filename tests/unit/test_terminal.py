"""Tables of the command line: aligned, within the terminal, whole where output is no terminal."""

import pytest

from sglang_gemma4 import terminal

HEADS = ("name", "tokens", "what it is")
ROWS = [
    ["one", "1,234", "a short text"],
    ["twenty", "7", "a text of many words that is longer than the terminal is wide"],
    ["none", "does not fit"],
]


def test_columns_are_aligned_and_a_short_row_ends_in_a_cell_that_spans() -> None:
    assert terminal.table(HEADS, ROWS, right=[1]) == [
        "name    tokens  what it is",
        "one      1,234  a short text",
        "twenty       7  a text of many words that is longer than the terminal is wide",
        "none    does not fit",
    ]


@pytest.mark.parametrize("limit", [40, 60])
def test_the_last_column_is_wrapped_to_the_terminal(limit: int) -> None:
    lines = terminal.table(HEADS, ROWS, right=[1], limit=limit)
    assert max(map(len, lines)) <= limit
    assert all(line.startswith(" " * 16) for line in lines[3:-1]), "below the column's first line"
    assert " ".join(" ".join(lines).split()) == " ".join(" ".join(terminal.table(HEADS, ROWS, right=[1])).split()), "nothing is cut"


def test_a_pipe_has_no_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    assert terminal.width() is None, "pytest captures the output"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert terminal.width() == 30


def test_what_takes_time_is_said_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.say("importing SGLang")
    assert capsys.readouterr() == ("", "sglang-gemma4: importing SGLang\n")


def test_nothing_is_wrapped_without_a_limit() -> None:
    assert terminal.wrapped("a b " * 100, None) == ["a b " * 100]
    assert max(map(len, terminal.wrapped("a b " * 100, 30))) <= 30


def test_a_row_whose_last_cell_is_empty_is_shown_however_narrow_the_terminal_is() -> None:
    """Such as a switch that is set to nothing."""
    assert terminal.table((), [["SGLANG_GEMMA4_QKV", ""], ["SGLANG_GEMMA4", "1"]], limit=12)[0] == "SGLANG_GEMMA4_QKV"


def test_markdown_has_the_same_cells() -> None:
    assert terminal.markdown(HEADS, ROWS[:1], right=[1]) == [
        "| name | tokens | what it is |",
        "| --- | ---: | --- |",
        "| one | 1,234 | a short text |",
    ]
