"""The soak's servers: which pool is too small, and by how much."""

import pytest

from tests.gpu import soak


@pytest.mark.parametrize("bold", [False, True])
def test_each_pool_in_turn_is_a_tenth_too_small(bold: bool) -> None:
    asked = soak.parser().parse_args(["folder"])
    assert asked.bind == "both"
    need = soak.RUNNING * (80 + 160 if bold else 180 + 48)
    variables, [full], needed = soak.too_small("full", asked.model, asked.share, need)
    assert (variables, full, needed) == ({}, f"--max-total-tokens={int(0.9 * need)}", need)

    variables, [full, ratio], needed = soak.too_small("sliding", asked.model, asked.share, need)
    assert full == f"--max-total-tokens={4 * need}", "the full pool has room"
    sliding = int(float(ratio.partition("=")[2]) * 4 * need)
    assert sliding == int(0.9 * needed)
    assert variables == {"SGLANG_SWA_EVICTION_INTERVAL": str(soak.INTERVAL)}
    window = 64
    assert soak.RUNNING * window < sliding < soak.RUNNING * 1.5 * window, "not two windows for each request, nor less than one"
