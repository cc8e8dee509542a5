"""``sglang-gemma4 bench --claims docs/claims.toml``: writes the README's table, ``docs/benchmarks.md`` and the README's chart."""

from collections.abc import Sequence
from pathlib import Path

from sglang_gemma4.benchmark import claims_chart
from sglang_gemma4.benchmark.claims import METRICS, SIDES, Change, Load, Row, compared, day, read
from sglang_gemma4.benchmark.results import table
from sglang_gemma4.benchmark.statistics import Summary

BEGIN, END = "<!-- claims: made by sglang-gemma4 bench --claims docs/claims.toml -->", "<!-- end of claims -->"
PAGE, CHART = Path("docs/benchmarks.md"), Path("docs/img/mixed-load.png")
MISSING = "not measured"
NAMES = {"stock": "stock SGLang", "vllm": "vLLM", "package": "this package"}
SHORT = {"tokens": "tokens/s", "ttft": "TTFT", "itl": "ITL"}
TITLES = {"tokens": "output tokens/s", "ttft": "p99 TTFT, ms", "itl": "p99 ITL, ms"}
_NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_HEAD = """\
# Benchmarks

Made from [claims.toml](claims.toml) and the raw lines of the runs by `sglang-gemma4 bench --claims docs/claims.toml`; do not edit.
How to measure on your own GPU: [measuring.md](measuring.md). All runs by question: [runs/README.md](../runs/README.md).

- **Random weights. Under MTP every engine accepts a simulated 2.8 tokens a step.** The tables compare speed, not answers or drafts.
- All engines of a run shared one GPU, one after the other, with the same prompts, unless its line says otherwise.
- Servers of SGLang, stock and with the package, ran with `--attention-backend triton` and `--sampling-backend pytorch`; SGLang's own choice
  may be another.
- Medians over passes; the range of the passes stands in brackets. TTFT is the time to first token, ITL the inter-token latency.
- "Package against it" is the package's difference from that side: `+` means more tokens/s, and longer times. `=`: the passes overlap.
- **Stale**: a default that changes speed changed after the run. The numbers are of the run's date and of no later version.
- `mix` is 120 requests of 50 to 6,000 + 50 to 600 tokens, at most 80 at once; `chat` 80 of 1,000 + 1,000; `summarize` 80 of 8,000 + 1,000;
  `prefill` 30 of 7,000 + 10; `single` 4 of 1,000 + 500, one at a time; `32x1000/200` 32 at once of 1,000 + 200. `log-uniform@12`:
  requests of the mix's lengths arrive at 12 a second, so that its tokens/s are those of the arrivals.
- Every size and format that no table names has not been measured."""


def write(path: Path) -> list[Path]:
    """Write the pages of a claims file in ``docs/`` of a repository, and return their paths. Raises as :func:`claims.read`.

    Raises:
        ValueError: the README lacks one of the two marker comments.
    """
    root = path.resolve().parents[1]
    rows = read(path, root / "runs")
    readme = root / "README.md"
    readme.write_text(with_table(readme.read_text(), rows))
    (root / PAGE).write_text(page(rows))
    (root / CHART).parent.mkdir(exist_ok=True)
    claims_chart.draw(rows, root / CHART)
    return [readme, root / PAGE, root / CHART]


def with_table(text: str, rows: Sequence[Row]) -> str:
    """The text of a README with a new table and new lines under it."""
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise ValueError(f"README.md needs one line {BEGIN} and, after it, one line {END}; write them where the table belongs")
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n{readme_table(rows)}\n{END}{rest.split(END)[1]}"


def readme_table(rows: Sequence[Row]) -> str:
    """The table with one line for each row that names a README load, and the meaning of its marks."""
    shown = [row for row in rows if row.readme]
    columns = [f"{SHORT[metric]} {side}" for metric in METRICS for side in ("stock", "vLLM", "**ours**")]
    cells = []
    for row in shown:
        load = row.load(str(row.readme))
        where = f"{claims_chart.name(row)}<br>[{day(row.began)}](runs/{row.run}){', stale' if row.stale else ''}"
        cells.append([where, *(_cell(load, metric, side) for metric in METRICS for side in SIDES)])
    return f"{table(['model, weights', *columns], cells, right=9)}\n\n{legend(shown)}"


def legend(shown: Sequence[Row]) -> str:
    """The lines under the README's table: units, marks and passes."""
    years = "/".join(sorted({str(row.began.year) for row in shown}))
    return (
        "tokens/s: output tokens/s, more is better. TTFT: p99 time to first token, ITL: p99 inter-token latency, in ms, less is better.\n"
        "Ours: this package. ▲: every pass beats every pass of the others. ▼: every pass is worse than every pass of at least one. "
        "=: neither.\n"
        f"–: not measured. Medians of {_passes(shown)}, {years}. **Stale**: a default changed later; the other rows have today's defaults."
    )


def page(rows: Sequence[Row]) -> str:
    """``docs/benchmarks.md``: a table for each model, and its runs below."""
    parts = [_HEAD]
    for model in dict.fromkeys(row.model for row in rows):
        own = [row for row in rows if row.model == model]
        lines = [line for row in own for load in row.loads for line in _lines(row, load)]
        columns = ["run", "weights, GPU", "load", "side", "passes", *TITLES.values(), "package against it"]
        runs = "\n".join(f"- {number}: {_told(row)}" for number, row in enumerate(own, 1))
        numbered = [[str(own.index(row) + 1), *cells] for row, cells in lines]
        parts += [f"## {model}", table(columns, numbered, right=5), runs]
    return "\n\n".join(parts) + "\n"


def change(ours: Summary, other: Summary, metric: str) -> str:
    """The package's difference in percent with its sign; ``=`` where the passes overlap."""
    percent = f"{ours.median / other.median - 1:+.0%}".replace("-", "−").replace("%", " %")
    return percent if compared(ours, other, metric) else "="


def _cell(load: Load, metric: str, side: str) -> str:
    found = load.sides.get(side, {}).get(metric)
    if found is None:
        return "–"
    return f"**{found.median:,.0f}**&nbsp;{load.mark(metric)}".removesuffix("&nbsp;") if side == "package" else f"{found.median:,.0f}"


def _passes(shown: Sequence[Row]) -> str:
    """The number of passes, such as ``three passes (31B: two)``."""
    counts = {row.model: min(side["tokens"].n for side in row.load(str(row.readme)).sides.values()) for row in shown}
    usual = max(counts.values(), key=list(counts.values()).count)
    fewer = [f"{model}: {_NUMBERS[count]}" for model, count in counts.items() if count != usual]
    return f"{_NUMBERS[usual]} passes" + (f" ({', '.join(fewer)})" if fewer else "")


def _lines(row: Row, load: Load) -> list[tuple[Row, list[str]]]:
    first = [f"{row.weights}, {row.gpu}" + (", stale" if row.stale else ""), load.name]
    found = []
    for side, values in load.sides.items():
        spreads = [_spread(values.get(metric)) for metric in METRICS]
        found.append((row, [*first, NAMES[side], str(values["tokens"].n), *spreads, "" if side == "package" else _against(load, side)]))
    return found


def _against(load: Load, side: str) -> str:
    """The package's differences from a side, metric by metric. Tokens/s of an open-loop load are left out: its arrivals decide them."""
    ours, other = load.sides["package"], load.sides[side]
    both = [metric for metric in METRICS if metric in ours and metric in other and not ("@" in load.name and metric == "tokens")]
    return ", ".join(f"{SHORT[metric]} {change(ours[metric], other[metric], metric)}" for metric in both)


def _spread(found: Summary | None) -> str:
    if found is None:
        return MISSING
    digits = 1 if found.high < 100 else 0
    return f"{found.median:,.{digits}f} ({found.low:,.{digits}f} to {found.high:,.{digits}f})"


def _told(row: Row) -> str:
    """The row's entry below its table: date, run, versions, commit, and what a reader has to know."""
    when = f"{day(row.began)} {row.began.year}" + (f", {row.began:%H:%M} UTC" if row.timed else "")
    facts = {"commit": "not recorded", **row.facts}
    versions = ", ".join(f"{name} {value}" for name, value in facts.items() if name != "commit")
    stale = f" **Stale** by what changed later: {'; '.join(map(_changed, row.overtaken))}." if row.overtaken else ""
    absent = {NAMES[side]: [load.name for load in row.loads if side not in load.sides] for side in SIDES}
    missing = [f"{name}{'' if len(names) == len(row.loads) else ' on ' + ', '.join(names)}" for name, names in absent.items() if names]
    note = (f" Not measured: {'; '.join(missing)}." if missing else "") + (f" {row.note}" if row.note else "")
    return f"[{row.run}](../runs/{row.run}), {row.weights}, {row.gpu}, {when}; {versions}; commit {facts['commit']}.{stale}{note}"


def _changed(found: Change) -> str:
    return f"{found.what} ({day(found.when)})"
