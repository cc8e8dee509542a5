"""The soak's servers: which pool is too small, and by how much."""

import asyncio
import time

import pytest

from tests.gpu import soak, soak_servers


@pytest.mark.parametrize("bold", [False, True])
def test_each_pool_in_turn_is_a_tenth_too_small(bold: bool) -> None:
    asked = soak.parser().parse_args(["folder"])
    assert asked.bind == "both"
    need = soak_servers.RUNNING * (80 + 160 if bold else 180 + 48)
    variables, [full], needed = soak_servers.too_small("full", asked.model, asked.share, need)
    assert (variables, full, needed) == ({}, f"--max-total-tokens={int(0.9 * need)}", need)

    variables, [full, ratio], needed = soak_servers.too_small("sliding", asked.model, asked.share, need)
    assert full == f"--max-total-tokens={4 * need}", "the full pool has room"
    sliding = int(float(ratio.partition("=")[2]) * 4 * need)
    assert sliding == int(0.9 * needed)
    assert variables == {"SGLANG_SWA_EVICTION_INTERVAL": str(soak_servers.INTERVAL)}
    window = 64
    assert soak_servers.RUNNING * window < sliding < soak_servers.RUNNING * 1.5 * window, (
        "not two windows for each request, nor less than one"
    )


def test_one_token_may_be_rounded_away_and_no_more() -> None:
    """Gaps of an H100's answers that rounding explains (runs/2026-11-28-h100-soak), and what an answer from wrong keys looks like."""
    likely = [0.0] * 82
    assert soak.verdict([*likely, 0.25, 0.0, 0.29], 82, experts=True) == "ties"
    assert soak.verdict([*likely, 1.978, 0.06, *likely], 82, experts=True) == "flips"
    assert soak.verdict([*likely, 1.978, 0.06, *likely], 82, experts=False) == "wrong", "a dense model rounds no choice away"
    assert soak.verdict([*likely, 4.1, 0.0], 82, experts=True) == "wrong"
    assert soak.verdict([*likely, 0.4, 0.0, 0.31], 82, experts=True) == "wrong"
    assert soak.verdict([0.327, *likely, 0.4], 60, experts=True) == "flips", "what the reference says too is not looked at"
    assert soak_servers.text_config("tiny-26b-a4b")["enable_moe_block"]
    assert not soak_servers.text_config("tiny-31b").get("enable_moe_block")
    assert soak.shared([1, 2, 3], [1, 2, 4, 5]) == 2
    assert soak.shared([1, 2], [1, 2, 4]) == 2


def test_a_stopped_soak_asks_nothing_more() -> None:
    """As SIGTERM leaves it; no server has an address here."""
    stopped = soak.Soak([[2, 5]], most=4, bold=False, exact=True, stopped=True)
    asyncio.run(stopped.clients(ends=time.monotonic() + 60))
    assert not any(stopped.counts.values())
    with pytest.raises(SystemExit, match="after 0 of 1 references"):
        asyncio.run(stopped.references())
