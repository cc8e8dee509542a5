"""Where the benchmark of the experts' products puts the rows that DeepGEMM multiplies."""

import torch

from sglang_gemma4.benchmark import expert_products as products
from sglang_gemma4.benchmark.prefill_expert_times import Sorted, padded


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
