"""Terminal output of every command: aligned tables that fit the terminal, and lines on stderr about what takes time.

If standard output is not a terminal, rows are plain lines that are neither wrapped nor cut.
"""

import shutil
import sys
import textwrap
from collections.abc import Collection, Sequence

LEAST = 24
"""Fewest columns of the last cell of a row, however narrow the terminal is."""


def width() -> int | None:
    """Columns of the terminal, or None where standard output is a pipe or a file."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def say(text: str) -> None:
    """Print a line to stderr at once: what the command does before its output comes."""
    print(f"sglang-gemma4: {text}", file=sys.stderr, flush=True)


def table(
    heads: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[int] = (), limit: int | None = None, gap: str = "  "
) -> list[str]:
    """Lines of aligned columns.

    Args:
        heads: the first line; may be empty.
        rows: the last cell of a row with fewer cells than the heads takes the remaining width.
        right: columns that are aligned on the right, as numbers are.
        limit: columns of the terminal; the last column is wrapped to it.
        gap: text between columns.
    """
    every = [*([heads] if heads else []), *rows]
    count = max(map(len, every), default=0)
    widths = [max((len(row[column]) for row in every if column < len(row) - (len(row) < count)), default=0) for column in range(count)]
    return [line for row in every for line in _lines(row, widths, right, limit, gap)]


def _lines(row: Sequence[str], widths: Sequence[int], right: Collection[int], limit: int | None, gap: str) -> list[str]:
    """A row's line, and further ones where the last column is wrapped."""
    spans = len(row) - 1 if len(row) < len(widths) else len(row)  # the column from which a short row's last cell goes on
    cells = [cell.rjust(widths[at]) if at in right and at < spans else cell.ljust(widths[at]) for at, cell in enumerate(row)]
    first = gap.join(cells).rstrip()
    if limit is None or len(first) <= limit or not row:
        return [first]
    before = "".join(cell + gap for cell in cells[:-1])
    room = max(LEAST, limit - len(before))
    wrapped_cell = textwrap.wrap(
        row[-1],
        width=len(before) + room,
        initial_indent=before,
        subsequent_indent=" " * len(before),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return wrapped_cell or [first]  # nothing is wrapped to no line


def wrapped(text: str, limit: int | None, indent: str = "") -> list[str]:
    """A sentence as lines of at most ``limit`` columns, the second and later ones indented."""
    if limit is None:
        return [text]
    return textwrap.wrap(text, max(LEAST, limit), subsequent_indent=indent, break_long_words=False, break_on_hyphens=False) or [""]


def markdown(heads: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> list[str]:
    """Lines of the same table in Markdown."""
    lines = ["| --- " if column not in right else "| ---: " for column in range(len(heads))]
    return [f"| {' | '.join(heads)} |", f"{''.join(lines)}|", *(f"| {' | '.join(row)} |" for row in rows)]
