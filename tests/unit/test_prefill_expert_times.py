"""Where the benchmark of the experts' products puts the rows that DeepGEMM multiplies, and which tiles of ours it tries."""

import torch

from sglang_gemma4.benchmark import expert_products as products
from sglang_gemma4.benchmark import prefill_expert_tiles as tiles
from sglang_gemma4.benchmark.prefill_expert_times import Sorted, padded
from sglang_gemma4.kernels.experts.prefill_experts import PrefillTile


def test_each_row_lies_among_its_expert_s_places() -> None:
    tokens, step = 37, 16
    experts, source = padded(Sorted(tokens, "cpu"), step)
    assert len(experts) % step == 0
    _, ids = products.routing(tokens, 0, "cpu")
    for expert in range(products.EXPERTS):
        places = (experts == expert).nonzero().flatten()
        asked = (ids == expert).any(dim=1).nonzero().flatten()
        assert len(places) == -(-len(asked) // step) * step
        assert torch.equal(source[places[: len(asked)]], asked)
        assert (source[places[len(asked) :]] == 0).all()


def test_tiles_that_are_tried_fit_and_have_names_of_their_own() -> None:
    jobs = tiles.candidates()
    assert len({tiles.name_of(job) for job in jobs}) == len(jobs) > 60
    assert jobs[0] == (False, 128, PrefillTile(128, 64, 8, 3, 1))
    for second, size, tile in jobs:
        assert bool(tile.programs) == tile.ahead
        assert (tile.programs or 1) * tiles.shared_bytes((second, size, tile)) <= tiles.SHARED_BYTES
        # Float32 sums in the registers of a program's threads.
        assert size * tile.columns * (1 if second else 2) <= 128 * 32 * tile.warps
    for second in (False, True):
        assert {size for each, size, _ in jobs if each == second} == {64, 128}
