"""The table of docs/cards.md is what ``sglang-gemma4 capacity`` gives."""

from pathlib import Path

import pytest

from sglang_gemma4.memory import capacity, fractions, model_bytes
from sglang_gemma4.memory.capacity import CARDS, Card, Server
from sglang_gemma4.tiny import real_sizes

PAGE = Path(__file__).parents[2] / "docs" / "cards.md"
COLUMNS = [(CARDS[name], images) for name in ("24 GB", "48 GB", "80 GB") for images in (True, False)]


def tokens(name: str, card: Card, mtp: bool, images: bool) -> str:
    """Tokens of the full pool by default flags, as the table has them; a dash where the weights or one request do not fit."""
    needed, server = model_bytes.need(name), Server(mtp, images=images)
    fraction, reserved = fractions.default(needed, card, server)
    try:
        left = fractions.budget(needed, card, server, fraction, reserved=reserved)
        return f"{capacity.by_window(needed, left, server, card).full:,}"
    except ValueError:
        return "–"


@pytest.mark.parametrize("mtp", [True, False])
@pytest.mark.parametrize("name", real_sizes.SIZES)
def test_tokens_of_a_model_by_card(name: str, mtp: bool) -> None:
    (line,) = (line for line in PAGE.read_text().splitlines() if line.startswith(f"| {name}{', MTP' if mtp else ''} |"))
    assert [cell.strip() for cell in line.strip("| ").split("|")[1:]] == [tokens(name, card, mtp, images) for card, images in COLUMNS]
