"""The launch that derives a step's attention metadata, on a card: SGLang's tables, and those of a replay after the lengths changed."""

import copy

import pytest
import torch

from tests.interpreted import test_step_metadata as interpreted

BATCHES = {"one long": [131_072], "eight": [1, 700, 4096, 63, 64, 65, 30_000, 2], "eighty": [17 * number + 1 for number in range(80)]}


@pytest.mark.parametrize("lengths", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize(("window", "mapped"), [(1023, True), (511, False), (None, False)])
def test_a_replay_fills_sglang_s_tables(lengths: list[int], window: int | None, mapped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt.layers.attention.triton_backend import TritonAttnBackend

    from sglang_gemma4.attention import step_metadata

    monkeypatch.setattr(interpreted, "TOKENS", max(lengths) + 64)
    monkeypatch.setattr(interpreted, "ROWS", len(lengths) + 1)
    expected = interpreted.backend(TritonAttnBackend, window, mapped, len(lengths), "cuda")
    found = copy.deepcopy(expected)
    chain = step_metadata.without_mask(expected, interpreted.step_of(torch.ones(1), torch.ones(1), torch.ones(1)).spec_info)
    # The graph's runner keeps these; a capture sees one token a request.
    many, rows = torch.ones(len(lengths), dtype=torch.int64, device="cuda"), torch.zeros(len(lengths), dtype=torch.int64, device="cuda")
    step_metadata.fill(found, len(lengths), many, rows, 4)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step_metadata.fill(found, len(lengths), many, rows, 4)
    for shift in (0, 1, 5):
        many.copy_(torch.tensor(lengths) + shift)
        rows.copy_(torch.randperm(len(lengths)) + 1)
        graph.replay()
        expected._update_target_verify_buffers(None, len(lengths), many, chain, rows)
        interpreted.same_tables(expected, found, window)
