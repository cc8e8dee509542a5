"""The table of docs/sessions.md is what the models' configs give."""

import re
from pathlib import Path

import pytest

from sglang_gemma4.memory import capacity, fractions, model_bytes
from sglang_gemma4.tiny import real_sizes

PAGE = Path(__file__).parents[2] / "docs" / "sessions.md"
LENGTHS = (5000, 10_000, 20_000)
MIB, GIB = 2**20, 2**30
FRACTION = 0.85


@pytest.mark.parametrize("name", real_sizes.SIZES)
def test_what_a_session_costs(name: str) -> None:
    (line,) = (line for line in PAGE.read_text().splitlines() if line.startswith(f"| {name} |"))
    window, cells, *numbers = (cell.strip() for cell in line.strip("| ").split("|")[1:])
    needed = model_bytes.need(name)
    kept = needed.window - 1  # a token's own key is the last of the config's window
    costs = [kept * needed.own_sliding + length * needed.own_full for length in LENGTHS]
    budget = fractions.budget(needed, capacity.CARDS["80 GB"], capacity.Server(mtp=True), FRACTION)
    assert window == f"{kept:,}"
    assert cells == f"{needed.own_sliding / 1024:.0f} + {needed.own_full / 1024:.0f}"
    assert numbers == [*(f"{cost / MIB:,.0f}" for cost in costs), *(f"{int(budget // cost):,}" for cost in costs)]


def test_what_the_text_says_of_sizes() -> None:
    needed, text = model_bytes.need("26b-a4b"), re.sub(r"\s+", " ", PAGE.read_text())
    cost = (needed.window - 1) * needed.own_sliding + 10_000 * needed.own_full
    assert f"200 sessions of 10,000 tokens on 26B-A4B are {200 * cost / GIB:.0f} GiB" in text
    assert f"{cost / MIB:.0f} MiB for 10,000 tokens of 26B-A4B is some {round(cost / 40e9 * 1000, -1):.0f} ms at 40 GB/s" in text
